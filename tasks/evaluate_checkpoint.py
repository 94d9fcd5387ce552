"""Evaluates any one model, or two side by side: each in a session of engines of its own."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from prefect import task

from rl_core.checkpoints.store import reading_sound
from rl_core.config.run import RunConfig
from rl_core.evaluation.files import PAGE
from rl_core.evaluation.rows import read_rows
from rl_core.evaluation.summary import Comparison, EvaluationSummary, compare, summarise
from rl_core.runs.run_folder import RunFolder
from rl_core.system.redaction import redacting_errors
from rl_core.workers.cluster import Workers
from tasks.evaluate import checkpoint_name, record_rows, show_tables
from tasks.evaluator import Evaluator, Rows
from tasks.queries.checkpoint_names import NamedModel
from tasks.report_page.answers import IN_ARTIFACT, Answers, choose_answers, show_answers
from tasks.report_page.page import write_page

_logger = logging.getLogger(__name__)


def _task_run_name(parameters: dict[str, Any]) -> str:
    names = [one.name for one in (parameters["model"], parameters["against"]) if one is not None]
    return f"evaluate {' against '.join(names)}"


@dataclass(frozen=True)
class Evaluated:
    """What was found out about the models that were asked."""

    summaries: tuple[EvaluationSummary, ...]
    """Of the model, and of the one it was compared with."""
    files: tuple[Path, ...]
    """Where their rows lie; fewer where a full disk did not take them."""
    comparison: Comparison | None
    """The first model against the second."""
    answers: tuple[Answers, ...] = ()
    """Some of each model's."""
    pages: tuple[Path, ...] = ()
    """Beside the rows: right and wrong answers, to be looked at."""


def evaluate_models(
    config: RunConfig, data: Path, model: NamedModel, against: NamedModel | None = None
) -> Evaluated:
    """Asks both models the same problems and compares their greedy responses.

    Rows lie under `<storage.root>/evaluations`, those of a run's model also in the run's `eval/`:
    beside the run's own evaluation, unless this is what the run's own settings ask.

    Raises:
        FileNotFoundError: a checkpoint was pruned since it was named.
        ValueError: a checkpoint is damaged.
    """
    evaluator = Evaluator(config, data)
    models = [model] if against is None else [model, against]
    answers = [_answers(evaluator, one) for one in models]
    files = [_keep(evaluator, one, rows) for one, rows in zip(models, answers, strict=True)]
    found = _evaluated(evaluator, files, answers)
    shown = zip(found.answers, models, strict=True)
    named = tuple(replace(some, run_id="", model=one.name) for some, one in shown)
    return replace(found, answers=named)


def evaluated_of_run(
    config: RunConfig, run: RunFolder, data: Path, models: Sequence[str]
) -> Evaluated:
    """Returns what `evaluate_run` has left in a run's folder of these models (`step_000100`).

    One whose rows a full disk did not take is left out.
    """
    evaluator = Evaluator(config, data)
    found = [run.evaluations.find(model, evaluator.evaluation) for model in models]
    files = [file for file in found if file is not None]
    return _evaluated(evaluator, files, [read_rows(file) for file in files])


def _evaluated(
    evaluator: Evaluator, files: Sequence[Path | None], answers: Sequence[Rows]
) -> Evaluated:
    pages = [file.with_suffix(PAGE) for file in files if file is not None]
    return Evaluated(
        summaries=tuple(summarise(rows) for rows in answers),
        files=tuple(file for file in files if file is not None),
        comparison=compare(*answers) if len(answers) == 2 else None,
        answers=tuple(choose_answers(r, evaluator.asked, most=IN_ARTIFACT) for r in answers),
        pages=tuple(page for page in pages if page.exists()),
    )


@task(name="evaluate", task_run_name=_task_run_name)  # type: ignore[arg-type]  # a plain function does
@redacting_errors()
def evaluate_models_task(
    config: RunConfig, data: Path, model: NamedModel, against: NamedModel | None = None
) -> dict[str, Any]:
    """Evaluates in a flow run; the tables of `evaluate_task`, and the numbers for programs."""
    evaluated = evaluate_models(config, data, model, against)
    names = [one.name for one in (model, against) if one is not None]
    summaries = [
        replace(summary, model=name)
        for summary, name in zip(evaluated.summaries, names, strict=True)
    ]
    verdict = f"{names[0]} against {names[1]}: {evaluated.comparison}" if against else names[0]
    show_tables(summaries, f"{verdict}, on the test split, with 95% intervals.")
    show_answers(evaluated.answers, evaluated.pages)
    return as_numbers(evaluated, names)


def as_numbers(evaluated: Evaluated, names: Sequence[str]) -> dict[str, Any]:
    """Returns plain values: `models`, called by these names, `comparison` and `files`."""
    comparison = evaluated.comparison
    return {
        "models": [
            {
                "model": name,
                "problems": summary.num_problems,
                "accuracy": summary.accuracy.value,
                "accuracy_low": summary.accuracy.low,
                "accuracy_high": summary.accuracy.high,
            }
            for name, summary in zip(names, evaluated.summaries, strict=True)
        ],
        "comparison": comparison and {"verdict": comparison.verdict, **asdict(comparison)},
        "files": [str(file) for file in evaluated.files],
    }


def _answers(evaluator: Evaluator, model: NamedModel) -> Rows:
    name = _file_name(model)
    if (rows := evaluator.reusable_rows(name, model.folder)) is not None:
        return rows
    with (
        reading_sound(model.folder),
        Workers.start(
            evaluator.config, model.folder, learner=False, report=_logger.info
        ) as workers,
    ):
        return evaluator.ask(workers.engines, name, model.folder)


def _keep(evaluator: Evaluator, model: NamedModel, rows: Rows) -> Path | None:
    """Returns where a model's rows lie, in its run if it is of one; None: the disk is full."""
    if model.run is not None:
        is_own = evaluator.is_own_of(model.run)
        record_rows(evaluator, model.run, rows, model=model.model, step=model.step, is_own=is_own)
        return model.run.evaluations.find(model.model, evaluator.evaluation)
    file = evaluator.rows_file(_file_name(model), model.folder)
    if not file.exists():
        return None
    labelled = evaluator.label(rows, run_id="", model=model.name, step=0)
    write_page(labelled, evaluator.asked, file)
    return file


def _file_name(model: NamedModel) -> str:
    if model.run is None:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", model.name).strip("-.")
    return "base" if model.model == "base" else checkpoint_name(model.folder)
