"""Evaluate: models answer the test split; their results are kept and compared."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from prefect import task

from rl_core.checkpoints.champion import PromotedContender, champion_file, read_champion
from rl_core.checkpoints.store import latest, list_checkpoints, reading_latest, reading_sound
from rl_core.config.run import RunConfig
from rl_core.data.adapter_source import base_of
from rl_core.data.readers import count_rows
from rl_core.evaluation.rows import PAGE, read_rows
from rl_core.evaluation.summary import (
    Comparison,
    EvaluationSummary,
    accuracy_by,
    compare,
    summarise,
)
from rl_core.evaluator import Evaluator, Rows, checkpoint_name
from rl_core.runs.run_folder import RunFolder, write_unless_full
from rl_core.storage.champions import bring_champion
from rl_core.storage.object_store import StoreError
from rl_core.system.redaction import redacting_errors
from rl_core.system.waits import OF_TRAINING, Waits
from rl_core.workers.cluster import Workers
from tasks.prefect_ui.artifacts import create_table_artifact
from tasks.prefect_ui.flow_run import once_per_training, stage
from tasks.queries.checkpoint_names import NamedModel
from tasks.report_page.page import write_page
from tasks.report_page.samples import IN_ARTIFACT, Answers, choose_answers, show_answers
from tasks.supervision.supervisor import Watched, call_supervised

if TYPE_CHECKING:
    from rl_core.workers.engines import Engines
    from tasks.supervision.child import Reporter

_TOKENIZER: Final = "tokenizer.json"
_logger = logging.getLogger(__name__)


def evaluate_run(
    config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates base model and latest checkpoint, and returns a summary of each.

    Runs in a watched process, like training; if all rows are known, without it and without engines.
    Leaves out the best checkpoint: it was chosen on these problems, so its accuracy is too high.
    """
    evaluator = Evaluator(config, data)
    is_known = evaluator.may_reuse and evaluator.rows_file("base", model_path).exists()
    if is_known and (newest := latest(run.path)) is not None:  # reads every byte of it
        file = evaluator.rows_file(checkpoint_name(newest.path), newest.path)
        is_known = file.exists() and _champion_to_ask(evaluator, model_path) is None
    if is_known:
        return evaluate_with(None, config, run, data, model_path)
    summaries = call_supervised(
        Watched.of_run("evaluator", config, run),
        evaluate_for_parent,
        {"config": config, "run": run, "data": data, "model_path": model_path},
        _logger,
    )
    return summaries or []


def evaluate_for_parent(
    reporter: Reporter, *, config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates with engines of its own, in a watched process."""
    waits = Waits(run.path / OF_TRAINING, reporter.progress)
    with (
        waits.written(),
        Workers.start(
            config,
            model_path,
            learner=False,
            log_folder=run.path / "workers",
            report=_logger.info,
            waits=waits,
        ) as workers,
    ):
        return evaluate_with(workers.engines, config, run, data, model_path)


def evaluate_with(
    engines: Engines | None, config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates both models; `engines` hold the base model's weights, None if all rows are known.

    Writes `eval/base.parquet`, `eval/step_000100.parquet` and, in `run.json`, both accuracies. If
    the evaluation settings in `config` are not the run's own, `run.json` stays as it is, and the
    rows get their own folder (`rl_core/evaluation/rows.py`). The champion of these problems answers
    too, for the comparison, if its rows under these settings are missing.
    """
    evaluator = Evaluator(config, data, run)
    is_own = evaluator.is_own_of(run)
    if not is_own:
        _logger.info("these are not the run's own settings: kept next to its own evaluation")
    elif run.evaluations.own() not in (None, evaluator.evaluation):
        run.update(accuracy_before=None, accuracy_after=None)  # were of another evaluation

    rows = evaluator.rows_of(engines, "base", model_path, is_loaded=True)
    before = _record_rows(evaluator, run, rows, model="base", step=0, is_own=is_own)
    if is_own:
        run.update(accuracy_before=before.accuracy.value)
    with reading_latest(run.path) as checkpoint:
        if checkpoint is None:
            _logger.warning("%s has no checkpoint: only the base model was evaluated", run.run_id)
            return [before]
        path = checkpoint.path
        rows = evaluator.rows_of(engines, checkpoint_name(path), path)
    after = _record_rows(evaluator, run, rows, model=path.name, step=checkpoint.step, is_own=is_own)
    if is_own:
        run.update(accuracy_after=after.accuracy.value)
    if engines is not None and (champion := _champion_to_ask(evaluator, model_path)) is not None:
        _ask_champion(evaluator, engines, champion)
    return [before, after]


def _record_rows(
    evaluator: Evaluator, run: RunFolder, rows: Rows, *, model: str, step: int, is_own: bool
) -> EvaluationSummary:
    """Writes a model's rows into the run's folder if the disk has room; returns their summary."""
    labelled = evaluator.label(rows, run_id=run.run_id, model=model, step=step)

    def write() -> None:
        write_page(labelled, evaluator.asked, run.evaluations.write(labelled, is_own=is_own))

    write_unless_full(
        run,
        f"eval/{model}.parquet",
        write,
        remedy=f"`countdown-train evaluate run_id={run.run_id}` writes it",
    )
    summary = summarise(labelled)
    kind = accuracy_by(summary.decoding)
    _logger.info("%s: %s %s on %d problems", model, kind, summary.accuracy, summary.num_problems)
    return summary


def _run_name(parameters: dict[str, Any]) -> str:
    config: RunConfig = parameters["config"]
    newest = max(list_checkpoints(parameters["run"].path), key=lambda c: c.step, default=None)
    models = f"base and {newest.path.name}" if newest else "the base model"
    try:
        num_problems = count_rows(parameters["data"] / "test.parquet")
    except (OSError, ValueError):  # the task itself says so
        return f"evaluate {models}"
    num_asked = min(num_problems, config.evaluation.max_problems or num_problems)
    return f"evaluate {models} on {num_asked:,} problems"


@stage("evaluate", _run_name, once_per_training)
def evaluate_task(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> None:
    """Evaluates in a flow run; table artifacts compare the models, also by difficulty."""
    summaries = evaluate_run(config, run, data, model_path)
    evaluated = evaluated_of_run(config, run, data, [summary.model for summary in summaries])
    _show_tables(
        summaries,
        f"{run.run_id} on the test split, with 95% intervals. accuracy: {summaries[0].decoding}, "
        "scored as in training; strict and lenient: by the strictest and the most lenient reading "
        "of an answer; pass@k: one of k samples is right; maj@k: their majority answer is right."
        + (f" {evaluated.comparison.gain_in_words}." if evaluated.comparison else ""),
    )
    if len(evaluated.files) == len(summaries):  # fewer if the disk had no room for the rows
        show_answers(evaluated.answers[-1:], evaluated.pages[-1:])


def _champion_to_ask(evaluator: Evaluator, model_path: Path) -> PromotedContender | None:
    """Returns the champion of these problems; None if its rows are known or cannot be made."""
    root = evaluator.config.storage.root
    try:
        bring_champion(evaluator.config.storage, evaluator.config.env.name, evaluator.problem_set)
    except StoreError as error:
        _logger.warning("using the champion that is known on this disk: %s", error)
    champion = read_champion(champion_file(root, evaluator.config.env.name, evaluator.problem_set))
    if champion is None or not champion.is_there(root):
        return None
    folder = root / champion.current.checkpoint
    if evaluator.reusable_rows(checkpoint_name(folder), folder) is not None:
        return None
    if (folder / _TOKENIZER).read_bytes() != (model_path / _TOKENIZER).read_bytes():
        _logger.warning(
            "the champion %s has another tokenizer: it is not evaluated again",
            champion.current.name,
        )
        return None
    return champion.current


def _ask_champion(evaluator: Evaluator, engines: Engines, champion: PromotedContender) -> None:
    folder = evaluator.config.storage.root / champion.checkpoint
    with ExitStack() as held:
        try:
            held.enter_context(reading_sound(folder))
            engines.load_weights(folder)
        except (FileNotFoundError, ValueError) as error:
            _logger.warning("the champion %s cannot be evaluated again: %s", champion.name, error)
            return
        evaluator.ask(engines, checkpoint_name(folder), folder)


@dataclass(frozen=True)
class Evaluated:
    """What was found out about one model, or about two that are compared."""

    summaries: tuple[EvaluationSummary, ...]
    files: tuple[Path, ...]  # of their rows; fewer if the disk had no room
    comparison: Comparison | None
    answers: tuple[Answers, ...] = ()  # some of each model's
    pages: tuple[Path, ...] = ()  # HTML pages of right and wrong answers, next to the rows


def evaluate_models(
    config: RunConfig, data: Path, model: NamedModel, against: NamedModel | None = None
) -> Evaluated:
    """Asks both models the same problems and compares their accuracies.

    Rows lie under `<storage.root>/evaluations`, those of a run's model also in the run's `eval/`.
    FileNotFoundError if a checkpoint was pruned since it was named, ValueError if it is damaged.
    """
    evaluator = Evaluator(config, data)
    models = [one for one in (model, against) if one is not None]
    answers = [_answers_of(evaluator, one) for one in models]
    files = [_keep(evaluator, one, rows) for one, rows in zip(models, answers, strict=True)]
    evaluated = _evaluated(evaluator, filter(None, files), answers)
    shown = zip(evaluated.answers, models, strict=True)
    named = tuple(replace(some, run_id="", model=one.name) for some, one in shown)
    return replace(evaluated, answers=named)


def evaluated_of_run(
    config: RunConfig, run: RunFolder, data: Path, models: Sequence[str]
) -> Evaluated:
    """Returns the results of `evaluate_run` for these models (`step_000100`), read from the run."""
    evaluator = Evaluator(config, data)
    places = (run.evaluations.find(model, evaluator.evaluation) for model in models)
    files = list(filter(None, places))
    answers = [
        # In the rows it is called as it was when they were made.
        [row | {"run_id": run.run_id} for row in read_rows(file, below=run.path)]
        for file in files
    ]
    return _evaluated(evaluator, files, answers)


def _evaluated(evaluator: Evaluator, files: Iterable[Path], answers: Sequence[Rows]) -> Evaluated:
    files = tuple(files)
    pages = (file.with_suffix(PAGE) for file in files)
    return Evaluated(
        summaries=tuple(map(summarise, answers)),
        files=files,
        comparison=compare(*answers) if len(answers) == 2 else None,
        answers=tuple(choose_answers(r, evaluator.asked, most=IN_ARTIFACT) for r in answers),
        pages=tuple(page for page in pages if page.exists()),
    )


def _names_of(parameters: dict[str, Any]) -> str:
    names = [one.name for one in (parameters["model"], parameters["against"]) if one is not None]
    return f"evaluate {' against '.join(names)}"


@task(name="evaluate", task_run_name=_names_of)  # type: ignore[arg-type]  # a plain function does
@redacting_errors()
def evaluate_models_task(
    config: RunConfig, data: Path, model: NamedModel, against: NamedModel | None = None
) -> dict[str, Any]:
    """Evaluates in a flow run; the tables of `evaluate_task`, and the numbers for programs."""
    evaluated = evaluate_models(config, data, model, against)
    names = [answers.model for answers in evaluated.answers]
    named = zip(evaluated.summaries, names, strict=True)
    summaries = [replace(summary, model=name) for summary, name in named]
    comparison = evaluated.comparison
    verdict = " against ".join(names)
    if comparison is not None:
        verdict += f": {comparison}, {comparison.gain_in_words}"
    _show_tables(summaries, f"{verdict}, on the test split, with 95% intervals.")
    show_answers(evaluated.answers, evaluated.pages)
    return {
        "models": [
            {"model": one.model, "problems": one.num_problems, "accuracy": one.accuracy.value}
            | {"accuracy_low": one.accuracy.low, "accuracy_high": one.accuracy.high}
            for one in summaries
        ],
        "comparison": comparison
        and {
            **{"verdict": comparison.verdict, **asdict(comparison)},
            **{"gain": comparison.gain.value, "gain_low": comparison.gain.low},
            "gain_high": comparison.gain.high,
        },
        "files": [str(file) for file in evaluated.files],
    }


def _answers_of(evaluator: Evaluator, model: NamedModel) -> Rows:
    name = _file_name(model)
    if (rows := evaluator.reusable_rows(name, model.folder)) is not None:
        return rows
    base = base_of(model.folder)
    with (
        reading_sound(model.folder),
        Workers.start(
            evaluator.config,
            base,
            resume_from=None if base == model.folder else model.folder,
            learner=False,
            report=_logger.info,
        ) as workers,
    ):
        return evaluator.ask(workers.engines, name, model.folder)


def _keep(evaluator: Evaluator, model: NamedModel, rows: Rows) -> Path | None:
    """Returns the file of a model's rows, in its run if it has one; None if the disk is full."""
    if model.run is not None:
        is_own = evaluator.is_own_of(model.run)
        _record_rows(evaluator, model.run, rows, model=model.model, step=model.step, is_own=is_own)
        return model.run.evaluations.find(model.model, evaluator.evaluation)
    file = evaluator.rows_file(_file_name(model), model.folder)
    if not file.exists():
        return None
    write_page(evaluator.label(rows, run_id="", model=model.name, step=0), evaluator.asked, file)
    return file


def _file_name(model: NamedModel) -> str:
    if model.run is None:
        return re.sub(r"[^A-Za-z0-9._-]+", "-", model.name).strip("-.")
    return "base" if model.model == "base" else checkpoint_name(model.folder)


def _show_tables(summaries: Sequence[EvaluationSummary], description: str) -> None:
    """Shows the models' results, overall and by difficulty, in the Prefect UI."""
    create_table_artifact(summary_table(summaries), key="evaluation", description=description)
    create_table_artifact(
        group_table(summaries),
        key="evaluation-by-difficulty",
        description="Accuracy by how many numbers and how many solutions a problem has.",
    )


def summary_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per measure, one column per model, as text."""
    measured = {summary.model: measures(summary) for summary in summaries}
    return [
        {"measure": name, **{model: values[name] for model, values in measured.items()}}
        for name in next(iter(measured.values()))
    ]


def measures(summary: EvaluationSummary) -> dict[str, str]:
    """Returns one model's measures by name; a share comes with its 95% interval."""
    return {
        "problems": str(summary.num_problems),
        **({} if summary.is_greedy else {"decoding": summary.decoding}),
        "accuracy": str(summary.accuracy),
        "strict": str(summary.accuracy_strict),
        "lenient": str(summary.accuracy_lenient),
        **{f"pass@{k}": str(value) for k, value in summary.pass_at_k.items()},
        **{f"maj@{k}": str(value) for k, value in summary.majority_at_k.items()},
        "score": str(summary.score),
        "format": str(summary.format_share),
        "tokens": summary.response_tokens.as_text(1),
    }


def group_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per group of problems, a column per model (all saw the same problems)."""
    return [
        {"problems": groups[0].label, "number": groups[0].num_problems}
        | {
            summary.model: str(group.accuracy)
            for summary, group in zip(summaries, groups, strict=True)
        }
        for groups in zip(*(summary.groups for summary in summaries), strict=True)
    ]
