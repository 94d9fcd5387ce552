"""Which run this is, and what became of it: `run.json` from the flow's side."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from prefect.exceptions import Pause, TerminationSignal

from flows.errors import BadInputError, SettingsError, one_line
from flows.runs.failure_report import last_saved, last_words, show_last_words
from flows.runs.state import is_cancelled, is_suspended
from rl_core.config.run import RunConfig
from rl_core.runs.lock import close_lost_runs
from rl_core.runs.metrics_log import utc_now
from rl_core.runs.run_folder import IMPORTED, RunFolder, new_run_id
from rl_core.runs.settings_file import read_settings
from rl_core.system.log_file import PREFECTS_RUN_LOGGERS
from rl_core.system.redaction import redact_error
from tasks.preflight_checks.finding import PreflightError

Stage = Callable[[str], AbstractContextManager[None]]

_MISTAKES: Final = (BadInputError, SettingsError, PreflightError)
"""Worded for the person who made them: where in the program they were found helps nobody."""
_logger = logging.getLogger(__name__)


def choose_run(config: RunConfig, flow_run_id: str | None) -> RunConfig:
    """Returns the settings with `run_id` filled in.

    A given run_id stays. A retry of the same flow run (all its attempts share `flow_run_id`) goes
    on with its own run. Else the latest run of exactly these settings is continued if it was
    interrupted. Else the run is new.
    """
    if config.run_id is not None:
        _refuse_to_start_anew(RunFolder.under(config.storage.root, config.run_id))
        return config
    close_lost_runs(config.storage.root)
    new = re.sub(r"[^A-Za-z0-9._-]+", "-", flow_run_id) if flow_run_id else new_run_id()
    if not RunFolder.under(config.storage.root, new).path.exists():
        interrupted = _interrupted_run(config)
        if interrupted is not None:
            _logger.info("continuing %s, interrupted with the same settings", interrupted)
            new = interrupted
    return config.model_copy(update={"run_id": new})


def _refuse_to_start_anew(run: RunFolder) -> None:
    """Refuses to restart a finished run that has no checkpoint: it would lose its logs."""
    if not run.is_there():
        return
    record = run.read()
    if record.preset == IMPORTED:
        why = "is an imported log"
    elif record.status == "finished" and record.steps and not last_saved(run):
        why = f"is finished, and no checkpoint is there to go on from after step {record.steps}"
    else:
        return
    raise BadInputError(
        f"run {run.run_id} {why}: to start it anew would lose its metrics and rollouts; choose "
        f"another run_id=NAME, or move {run.path} away"
    )


def _interrupted_run(config: RunConfig) -> str | None:
    """Returns the latest run of these settings, if it was interrupted."""
    same = []
    for run in RunFolder.all_under(config.storage.root):
        try:
            settings = read_settings(run.path)
            if config.storage.url is not None:  # it may have been written in another folder
                settings["storage"]["root"] = config.storage.root
            record = run.read()
            equal = RunConfig.model_validate({**settings, "run_id": None}) == config
        except (OSError, ValueError, TypeError, KeyError):
            continue  # what lies there is no run of today's settings
        if equal:
            same.append(record)
    latest = max(same, key=lambda record: record.started_at, default=None)
    return latest.run_id if latest is not None and latest.status == "interrupted" else None


@contextmanager
def recorded(run: RunFolder) -> Iterator[Stage]:
    """Yields a timer of stages; at the end `run.json` says what became of the run, and why.

    `rl_core.runs.lock.started` holds the run meanwhile.
    """

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        start, before = time.monotonic(), sum(run.read().timings_s.values())
        try:
            yield
        finally:
            within = sum(run.read().timings_s.values()) - before  # stages that it did beforehand
            run.update(timings_s={name: time.monotonic() - start - within})

    with run.log_to_file():
        try:
            yield stage
        except (KeyboardInterrupt, TerminationSignal, Pause) as signal:
            _close(run, "interrupted", _stopped(signal, run), **_last_words(signal, run))
            raise
        except BaseException as error:
            redact_error(error)  # Prefect keeps what it says as the state of the flow run
            _logger.exception("the error in full:")
            _close(run, "failed", one_line(error), **_last_words(error, run))
            show_last_words(run)
            error.add_note(f"log: {run.path / 'log.txt'}")
            raise
        _close(run, "finished", run.read().reason)


def _stopped(signal: BaseException, run: RunFolder) -> str:
    if is_suspended():
        return (
            "suspended; Resume in the UI (after the time limit that Suspend was given: Retry) "
            f"or run_id={run.run_id} resumes"
        )
    if is_cancelled():
        saved = last_saved(run)
        at = f"saved at step {saved}" if saved else "before a step was saved"
        outcome = "goes on from there" if saved else "starts it again"
        return f"cancelled; {at}; Retry in the UI, or run_id={run.run_id}, {outcome}{_unsaved(run)}"
    is_ctrl_c = isinstance(signal, KeyboardInterrupt) and not signal.args
    name = "Ctrl-C" if is_ctrl_c else "SIGTERM"
    return f"stopped by {name}; the same command, or run_id={run.run_id}, resumes{_unsaved(run)}"


def _unsaved(run: RunFolder) -> str:
    """Returns in words which steps a resume repeats, if the stop could not save them."""
    done = run.metrics.last_step()
    at = last_saved(run)
    if done <= at:
        return ""
    again = f"step {done}" if done == at + 1 else f"steps {at + 1} to {done}"
    return f" and does {again} again, not saved before the end (trainer.stop_grace_s is too short?)"


def _last_words(error: BaseException, run: RunFolder) -> dict[str, Any]:
    """Returns `last_words`; if that fails, the reason is still recorded."""
    try:
        return last_words(error, run)
    except Exception:
        _logger.exception("no last words:")
        return {}


def _close(run: RunFolder, status: str, reason: str | None, **words: Any) -> None:
    _logger.info("run %s %s%s", run.run_id, status, f": {reason}" if reason else "")
    if words.get("next_step"):
        _logger.info("what to do next: %s", words["next_step"])
    run.update(
        status=status, reason=reason, finished_at=utc_now(), steps=run.metrics.last_step(), **words
    )


class _End(logging.Filter):
    """Tells a mistake once, in one line, and a stop that was asked for as no crash."""

    def __init__(self) -> None:
        super().__init__()
        self._told: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, _MISTAKES) and error is not self._told:
            self._told = error
            record.msg, record.args, record.exc_info = one_line(error), (), None
            return True
        said = record.getMessage()
        if self._told is not None and str(self._told) in said:
            return False
        return not (said.startswith("Crash detected!") and (is_cancelled() or is_suspended()))


def tell_the_end_plainly() -> None:
    """Has the logs of this process's flow and task runs end with what a person can use."""
    for name in PREFECTS_RUN_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, _End) for one in logger.filters):
            logger.addFilter(_end)


_end: Final = _End()
