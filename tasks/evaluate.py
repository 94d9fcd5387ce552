"""Evaluate: base model and trained model answer the test split, in one session of the engines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
from prefect import task

from rl_core.checkpoints.champion import PromotedContender, champion_file, read_champion
from rl_core.checkpoints.store import latest, list_checkpoints, reading_latest, reading_sound
from rl_core.config.run import RunConfig
from rl_core.evaluation.files import PAGE
from rl_core.evaluation.rows import read_rows
from rl_core.evaluation.summary import EvaluationSummary, summarise
from rl_core.runs.full_disk import write_unless_full
from rl_core.runs.run_folder import RunFolder
from rl_core.storage.champions import bring_champion
from rl_core.storage.object_store import StoreError
from rl_core.system.redaction import redacting_errors
from rl_core.workers.cluster import Workers
from tasks.evaluator import Engines, Evaluator, Rows
from tasks.prefect_ui.artifacts import create_table_artifact
from tasks.prefect_ui.result_keys import once_per_training
from tasks.report_page.answers import IN_ARTIFACT, choose_answers, show_answers
from tasks.report_page.page import write_page
from tasks.supervision.supervisor import call_supervised

if TYPE_CHECKING:
    from tasks.supervision.child import Reporter

_TOKENIZER: Final = "tokenizer.json"
_logger = logging.getLogger(__name__)


def evaluate_run(
    config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates base model and latest checkpoint, and returns a summary of each.

    In a watched process, as training; where all rows are known, without it and without engines. The
    latest checkpoint, not the best: `best` was chosen on these very problems, so its accuracy is
    too rosy. See `evaluate_with` for what is written.

    Raises:
        WorkerDied: the evaluator was killed, or one of its workers was.
        Stalled: nothing moved for `watchdog.stall_s`.
    """
    if _are_known(Evaluator(config, data), run, model_path):
        return evaluate_with(None, config, run, data, model_path)
    summaries = call_supervised(
        evaluate_for_parent,
        {"config": config, "run": run, "data": data, "model_path": model_path},
        name="evaluator",
        log_folder=run.path / "workers",
        stall_s=config.watchdog.stall_s,
        logger=_logger,
        joins_ray=config.resources.ray_address is not None,
        lends=config.env.reward_env,
    )
    return summaries or []


def _are_known(evaluator: Evaluator, run: RunFolder, model_path: Path) -> bool:
    """Says whether there is nobody to ask: not the run's models, and not the champion."""
    if not evaluator.may_reuse or not evaluator.rows_file("base", model_path).exists():
        return False
    newest = latest(run.path, to_resume=False)  # which reads all of it
    if newest is None:
        return True
    is_known = evaluator.rows_file(checkpoint_name(newest.path), newest.path).exists()
    return is_known and _champion_to_ask(evaluator, model_path) is None


def evaluate_for_parent(
    reporter: Reporter, *, config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates with engines of its own, in a process whose parent hears of it."""
    with Workers.start(
        config,
        model_path,
        learner=False,
        log_folder=run.path / "workers",
        report=_logger.info,
        on_progress=reporter.progress,
    ) as workers:
        return evaluate_with(workers.engines, config, run, data, model_path)


def evaluate_with(
    engines: Engines | None, config: RunConfig, run: RunFolder, data: Path, model_path: Path
) -> list[EvaluationSummary]:
    """Evaluates both models with engines that hold the base model's weights; None: all is known.

    Writes `eval/base.parquet` and `eval/step_000100.parquet`, and `accuracy_before` and
    `accuracy_after` in `run.json`. Asked otherwise than the run's own settings say, both models'
    rows lie beside those, and `run.json` stays: see `rl_core/evaluation/files.py`. The champion of
    these problems is asked too where its rows under these settings are missing, so that the
    checkpoint can be compared with it.
    """
    evaluator = Evaluator(config, data, run)
    is_own = evaluator.is_own_of(run)
    if not is_own:
        _logger.info("not as the run's own settings ask: kept beside its own evaluation")
    elif run.evaluations.own() not in (None, evaluator.evaluation):
        run.update(accuracy_before=None, accuracy_after=None)  # of other problems than these

    def asked(name: str, folder: Path) -> Rows:
        rows = evaluator.reusable_rows(name, folder)
        if rows is None:
            assert engines is not None, f"the rows of {name} were there a moment ago"
            if folder != model_path:
                engines.load_weights(folder)
            rows = evaluator.ask(engines, name, folder)
        return rows

    rows = asked("base", model_path)
    before = record_rows(evaluator, run, rows, model="base", step=0, is_own=is_own)
    if is_own:
        run.update(accuracy_before=before.accuracy.value)
    with reading_latest(run.path, to_resume=False) as checkpoint:
        if checkpoint is None:
            _logger.warning("%s has no checkpoint: only the base model was evaluated", run.run_id)
            return [before]
        path = checkpoint.path
        rows = asked(checkpoint_name(path), path)
    after = record_rows(evaluator, run, rows, model=path.name, step=checkpoint.step, is_own=is_own)
    if is_own:
        run.update(accuracy_after=after.accuracy.value)
    if engines is not None and (champion := _champion_to_ask(evaluator, model_path)) is not None:
        _ask_champion(evaluator, engines, champion)
    return [before, after]


def checkpoint_name(checkpoint: Path) -> str:
    """Returns the name under which a run's checkpoint is evaluated: run and step."""
    return f"{checkpoint.parent.parent.name}-{checkpoint.name}"


def record_rows(
    evaluator: Evaluator, run: RunFolder, rows: Rows, *, model: str, step: int, is_own: bool
) -> EvaluationSummary:
    """Writes one model's rows into the run's folder and returns their summary.

    A full disk costs the file, and the run's reason says so. `is_own`: the run's own settings ask
    this; else the rows lie beside its own.
    """
    labelled = evaluator.label(rows, run_id=run.run_id, model=model, step=step)

    def write() -> None:
        file = run.evaluations.write(labelled, is_own=is_own)
        write_page(labelled, evaluator.asked, file)

    write_unless_full(
        run,
        f"eval/{model}.parquet",
        write,
        remedy=f"`countdown-train evaluate run_id={run.run_id}` writes it",
    )
    summary = summarise(labelled)
    _logger.info(
        "%s: greedy accuracy %s on %d problems", model, summary.accuracy, summary.num_problems
    )
    return summary


def _run_name(parameters: dict[str, Any]) -> str:
    config: RunConfig = parameters["config"]
    newest = max(list_checkpoints(parameters["run"].path), key=lambda c: c.step, default=None)
    models = f"base and {newest.path.name}" if newest else "the base model"
    try:
        num_problems = pq.read_metadata(parameters["data"] / "test.parquet").num_rows
    except (OSError, ValueError):  # the task itself says so
        return f"evaluate {models}"
    asked = min(num_problems, config.evaluation.max_problems or num_problems)
    return f"evaluate {models} on {asked:,} problems"


@task(
    name="evaluate",
    task_run_name=_run_name,  # type: ignore[arg-type]  # a plain function does
    persist_result=True,
    result_serializer="json",
    cache_key_fn=once_per_training,
)
@redacting_errors()
def evaluate_task(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> None:
    """Evaluates in a flow run; table artifacts compare the models, also by difficulty."""
    summaries = evaluate_run(config, run, data, model_path)
    show_tables(
        summaries,
        f"{run.run_id} on the test split, with 95% intervals. accuracy: solved greedily, as "
        "scored in training; strict and lenient: by the strictest and the kindest reading of "
        "an answer; pass@k: one of k samples is right; maj@k: their majority is.",
    )
    evaluator = Evaluator(config, data)
    file = run.evaluations.find(summaries[-1].model, evaluator.evaluation)
    if file is not None:  # or a full disk did not take the rows
        newest = choose_answers(read_rows(file), evaluator.asked, most=IN_ARTIFACT)
        show_answers([newest], [file.with_suffix(PAGE)])


def show_tables(summaries: Sequence[EvaluationSummary], description: str) -> None:
    """Shows what models reached, all in all and by difficulty, in the Prefect UI."""
    create_table_artifact(summary_table(summaries), key="evaluation", description=description)
    create_table_artifact(
        group_table(summaries),
        key="evaluation-by-difficulty",
        description="Greedy accuracy by how many numbers and how many solutions a problem has.",
    )


def summary_table(summaries: Sequence[EvaluationSummary]) -> list[dict[str, Any]]:
    """Returns one row per number, a column per model, as people read it."""
    measured = {summary.model: measures(summary) for summary in summaries}
    return [
        {"measure": name, **{model: values[name] for model, values in measured.items()}}
        for name in next(iter(measured.values()))
    ]


def measures(summary: EvaluationSummary) -> dict[str, str]:
    """Returns the numbers of one model by name, those of a share with their 95% interval."""
    return {
        "problems": str(summary.num_problems),
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
        for groups in zip(
            *(summary.groups for summary in summaries),
            strict=True,
        )
    ]


def _champion_to_ask(evaluator: Evaluator, model_path: Path) -> PromotedContender | None:
    """Returns the champion of these problems, unless it was asked before or cannot be asked."""
    storage = evaluator.config.storage
    root = storage.root
    try:
        bring_champion(storage, evaluator.config.env.name, evaluator.problem_set)
    except StoreError as error:
        _logger.warning("the champion is the one that is known here: %s", error)
    champion = read_champion(champion_file(root, evaluator.config.env.name, evaluator.problem_set))
    if champion is None or not champion.is_there(root):
        return None
    folder = root / champion.current.checkpoint
    if evaluator.reusable_rows(checkpoint_name(folder), folder) is not None:
        return None
    if (folder / _TOKENIZER).read_bytes() != (model_path / _TOKENIZER).read_bytes():
        name = champion.current.name
        _logger.warning("the champion %s has another tokenizer: it is not evaluated anew", name)
        return None
    return champion.current


def _ask_champion(evaluator: Evaluator, engines: Engines, champion: PromotedContender) -> None:
    """Evaluates the champion, if its checkpoint is whole."""
    folder = evaluator.config.storage.root / champion.checkpoint
    with ExitStack() as held:
        try:
            held.enter_context(reading_sound(folder))
            engines.load_weights(folder)
        except (FileNotFoundError, ValueError) as error:
            _logger.warning("the champion %s cannot be evaluated anew: %s", champion.name, error)
            return
        evaluator.ask(engines, checkpoint_name(folder), folder)
