"""Attempts at training, as `run.json` keeps them: what a retry changes, and how the UI shows it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prefect.context import TaskRunContext

from rl_core.config.run import RunConfig
from rl_core.errors import RAY, OutOfMemory, RayNotStarted, WorkerDied
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.oom_recovery import (
    Changes,
    in_words,
    next_recovery_step,
    remedies,
    with_changes,
)
from rl_core.runs.run_folder import RunFolder
from rl_core.system.log_file import Log
from tasks.prefect_ui.artifacts import create_table_artifact


def settings_in_force(config: RunConfig, run: RunFolder) -> RunConfig:
    """Returns the settings with what the run's attempts have changed so far."""
    return with_changes(config, (attempt.changes for attempt in run.read().attempts))


def changes_for_retry(config: RunConfig, run: RunFolder, error: BaseException) -> Changes | None:
    """Returns the settings that a retry after this error changes; None if no retry would help.

    If a process died before too, the next attempt takes less of the machine's memory. Ray does not
    count as such a process: if it did not start, it held no memory.
    """
    in_force = settings_in_force(config, run)
    reasons = [attempt.reason for attempt in run.read().attempts]
    if isinstance(error, OutOfMemory):
        return next_recovery_step(in_force, error, _shape(run))
    if isinstance(error, RayNotStarted):  # a busy machine may be too slow once, not again
        return None if any("Ray died: it did not start" in reason for reason in reasons) else {}
    if (
        isinstance(error, WorkerDied)
        and error.worker != RAY
        and any(reason.startswith(f"{error.worker} died:") for reason in reasons)
    ):
        killed = OutOfMemory(error.worker, error.detail)
        return next_recovery_step(in_force, killed, _shape(run)) or {}
    return {}


def settings_that_help(config: RunConfig, run: RunFolder, error: OutOfMemory) -> list[str]:
    """Returns settings as a user would type them; each frees memory where it was short."""
    return remedies(settings_in_force(config, run), error, _shape(run))


@contextmanager
def telling_of_the_end(config: RunConfig, run: RunFolder) -> Iterator[None]:
    """Adds to an out-of-memory error what was tried, if no further recovery step helps."""
    try:
        yield
    except OutOfMemory as error:
        if changes_for_retry(config, run, error) is not None:
            raise
        tried = [in_words(a.changes) for a in run.read().attempts if a.changes]
        outcome = f"tried {', '.join(tried)}" if tried else "none is about this phase"
        raise OutOfMemory(
            error.phase, f"{error.detail}; no further recovery step helps: {outcome}"
        ) from error


def attempt_name(parameters: dict[str, Any]) -> str:
    """Returns the train task run's name: `train`, or what is different about a later attempt."""
    attempts = parameters["run"].read().attempts
    if len(attempts) < 2:
        return "train"
    last = attempts[-1]
    why = last.reason.partition(":")[0]
    after = ", continued" if why.startswith("continued") else f" after {why}"
    changes = last.changes.items()
    switched = (name.rpartition(".")[2].replace("_", " ") for name, (_, x) in changes if x is True)
    others = {name: change for name, change in changes if change[1] is not True}
    words = filter(None, (", ".join(switched), in_words(others), last.overrides))
    what = " ".join(words) or "the same settings"
    return f"train attempt {len(attempts)}{after}: {what}, from step {last.from_step}"


def show_attempts(run: RunFolder, logger: Log) -> None:
    """Says why this is not the first attempt: a line in the log, a table among the artifacts."""
    attempts = run.read().attempts
    if len(attempts) < 2:
        return
    last = attempts[-1]
    facts = (len(attempts), last.from_step, last.changed or "the same settings", last.reason)
    logger.warning("attempt %d, from step %d with %s: %s", *facts)
    if TaskRunContext.get() is None:
        return
    rows = [
        {"attempt": number, "from step": one.from_step, "changed settings": one.changed}
        | {"why": one.reason}  # last, because it is long
        for number, one in enumerate(attempts, start=1)
    ]
    create_table_artifact(
        rows,
        key="attempts",
        description="Each start of training: why it was needed, and what it changed.",
    )


def _shape(run: RunFolder) -> ModelShape | None:
    model = run.read().model
    if model is not None:
        with suppress(OSError, ValueError):
            return ModelShape.from_folder(Path(model))
    return None
