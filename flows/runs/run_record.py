"""Which run this is, and what became of it: `run.json`, and the last words of a run that failed."""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from prefect.exceptions import Pause, TerminationSignal
from prefect.utilities.names import generate_slug

from flows.errors import BadInputError, one_line
from flows.runs.lookup import settings_of_run
from flows.runs.state import is_cancelled, is_suspended, outlive_lost_leases, own_flow_run
from rl_core.checkpoints.store import list_checkpoints
from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.oom_recovery import beyond_recovery
from rl_core.runs.lock import close_lost_runs, is_free, training
from rl_core.runs.metrics_log import utc_now
from rl_core.runs.resume import check_same_code, newest_sound
from rl_core.runs.run_folder import IMPORTED, RunFolder, RunRecord
from rl_core.runs.settings_file import refuse_older, refuse_other_tests
from rl_core.system.atomic import refuse_foreign, refuse_links
from rl_core.system.disk_reserve import RESERVE_BYTES
from rl_core.system.log_file import PREFECTS_RUN_LOGGERS
from rl_core.system.redaction import redact, redact_error
from rl_core.system.signals import LEAVING_S
from rl_core.system.words import GIB, cut, in_one_line, markdown_table
from rl_core.tracking.observers import BudgetLimit
from tasks.prefect_ui.artifacts import create_markdown_artifact
from tasks.prefect_ui.attempts import settings_that_help
from tasks.prefect_ui.progress import HEADLINES
from tasks.preflight_checks import PreflightError
from tasks.report_page.failures import cause_of, later_attempts

_MEMORY: Final = ("memory/peak_gib/", "memory/host_gib/")
_LONGEST_REASON: Final = 120
_MISTAKES: Final = (BadInputError, PreflightError)  # which need no traceback
_logger = logging.getLogger(__name__)


def choose_run(config: RunConfig, flow_run_id: str | None, *, is_night: bool = False) -> RunConfig:
    """Returns the settings with `run_id` filled in, unless it is given.

    A retry of the same flow run (all its attempts share `flow_run_id`) continues its own run. Else
    see `run_to_continue`. Else the run is new; two that start within one second have two names.
    """
    if config.run_id is not None:
        run_of_name = RunFolder.under(config.storage.root, config.run_id)
        _refuse_to_start_anew(config, run_of_name)
        _refuse_others_work(run_of_name, config)
        return config
    new = flow_run_id or f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{generate_slug(2)}"
    new = re.sub(r"[^A-Za-z0-9._-]+", "-", new)
    if not RunFolder.under(config.storage.root, new).path.exists():
        run, why = run_to_continue(config, is_night=is_night)
        if why:
            _logger.info("%s", why)
        if run is not None:
            _refuse_others_work(run, config)
            new = run.run_id
    return config.model_copy(update={"run_id": new})


def _refuse_to_start_anew(config: RunConfig, run: RunFolder) -> None:
    """Refuses to restart a finished run that has no checkpoint: it would lose its logs."""
    if not run.is_there():
        return
    record = run.read()
    is_saved = config.storage.url is not None or run.last_saved()  # the store may have it
    if record.preset == IMPORTED:
        why = "is an imported log"
    elif record.status == "finished" and record.steps and not is_saved:
        why = f"is finished, and no checkpoint is there to continue from after step {record.steps}"
    else:
        return
    raise BadInputError(
        f"run {run.run_id} {why}: to start it again would lose its metrics and rollouts; choose "
        f"another run_id=NAME, or move {run.path} away"
    )


def _refuse_others_work(run: RunFolder, config: RunConfig) -> None:
    """Refuses a run of an older version or with other tests, and an algorithm that has changed."""
    try:
        refuse_older(run.path)
        refuse_other_tests(run.path, config)
        if config.own_algorithms and run.is_there() and run.last_saved():
            check_same_code(run, config, goes_on=True)
    except ValueError as error:
        raise BadInputError(str(error)) from None


def run_to_continue(
    config: RunConfig, *, is_night: bool = False
) -> tuple[RunFolder | None, str | None]:
    """Returns the run that a command with these settings continues, and what to say about that.

    It is the latest run of this user with the same settings (but for `MAY_DIFFER`) that nobody is
    working on, unless it reached its last step. If none of its checkpoints can be read, the command
    begins anew. A night continues only an interrupted run: a failed night would fail again, and a
    night that its budget stopped is over.
    """
    close_lost_runs(config.storage.root)
    for record, run in sorted(_same_runs(config), key=lambda one: one[0].started_at, reverse=True):
        is_over = record.status == "finished" and record.stopped_by is None
        if is_over or (is_night and record.status != "interrupted"):
            break
        if not is_free(run):
            continue
        try:
            _refuse_to_start_anew(config, run)
            # The trainer of a run whose own process was killed may still be saving.
            with training(run, wait_s=config.trainer.stop_grace_s + LEAVING_S):
                return run, _continuing(run, config)
        except (OSError, ValueError) as error:
            return None, f"a new run begins, since {in_one_line(error)}"
    return None, None


def _same_runs(config: RunConfig) -> Iterator[tuple[RunRecord, RunFolder]]:
    for run in RunFolder.all_under(config.storage.root):
        with suppress(OSError, ValueError):  # another user's, or no run of today's settings
            refuse_foreign(run.path)
            refuse_links(run.path)
            record = run.read()
            is_open = record.status != "running" and record.preset != IMPORTED
            if is_open and settings_of_run(run, config.storage).learns_the_same(config):
                yield record, run


def _continuing(run: RunFolder, config: RunConfig) -> str:
    """Returns the first line of a command that continues a run; ValueError if it cannot."""
    record = run.read()
    checkpoint, _ = newest_sound(run)
    place = "step 0 (no step was saved)" if checkpoint is None else f"step {checkpoint.step}"
    if checkpoint is None and config.storage.url is not None:
        place = "its last checkpoint in the store"
    ending = "failed" if record.status == "failed" else f"was {record.status}"
    if record.stopped_by:
        ending = f"was stopped by {record.stopped_by}"
    elif record.reason:
        ending += f": {cut(record.reason.partition(';')[0], _LONGEST_REASON)}"
    budget = BudgetLimit(config, run)
    if not budget.allows_a_step():
        place += f", but {budget.limit} allows no step more: set {budget.way_on}"
    return f"continuing run {run.run_id} from {place}; run_id=NEWNAME begins anew (it {ending})"


@contextmanager
def recorded(run: RunFolder) -> Iterator[Callable[[str], AbstractContextManager[None]]]:
    """Yields a timer of stages; at the end `run.json` says what became of the run, and why."""

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        start = time.monotonic()
        before = sum(run.read().timings_s.values())
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
            if own_flow_run() is not None:
                _show_last_words(run)
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
        saved = run.last_saved()
        at = f"saved at step {saved}" if saved else "before a step was saved"
        outcome = "continues from there" if saved else "starts it again"
        return f"cancelled; {at}; Retry in the UI, or run_id={run.run_id}, {outcome}{_unsaved(run)}"
    name = "Ctrl-C" if isinstance(signal, KeyboardInterrupt) and not signal.args else "SIGTERM"
    return f"stopped by {name}; the same command, or run_id={run.run_id}, resumes{_unsaved(run)}"


def _unsaved(run: RunFolder) -> str:
    """Returns, as text, which steps a resume repeats, if the stop could not save them."""
    done = run.metrics.last_step()
    at = run.last_saved()
    if done <= at:
        return ""
    again = f"step {done}" if done == at + 1 else f"steps {at + 1} to {done}"
    return f" and does {again} again, not saved before the end (trainer.stop_grace_s is too short?)"


def _last_words(error: BaseException, run: RunFolder) -> dict[str, Any]:
    """Returns the fields of `run.json` that a failure fills; none if they cannot be collected."""
    try:
        return {
            "next_step": next_step(error, run),
            "last_metrics": last_metrics(run.metrics.read()),
        }
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


def next_step(error: BaseException, run: RunFolder) -> str:
    """Returns in one sentence what to do about an error that ended a run."""
    step = run.last_saved()
    outcome = f"continues from step {step}" if step else "starts it again"
    again = f"the same command, or run_id={run.run_id} with other settings,"
    if isinstance(error, KeyboardInterrupt | TerminationSignal | Pause):
        same = "Retry in the UI" if is_cancelled() else "the same command"
        return f"{same}, or run_id={run.run_id}, {outcome}"
    try:
        config = settings_of_run(run)
    except BadInputError:
        config = None
    if isinstance(error, OutOfMemory):
        return f"{_room(error, run, config)} {outcome}"
    if (cause := cause_of(error)) is None:
        return f"the end of {run.path / 'log.txt'} has the error in full; {again} {outcome}"
    checkpoint = max((c.size_bytes for c in list_checkpoints(run.path)), default=0)
    needed_gib = (checkpoint + RESERVE_BYTES) / GIB + (config or RunConfig()).storage.min_free_gib
    remedy = cause.here.format(
        error=error,
        run=run,
        workers=run.path / "workers",
        missing_gib=max(needed_gib - run.free_gib(), 0.1),
    )
    return f"{remedy}; {again} {outcome}"


def last_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the last step, and the last values of memory and of the metrics that people read."""
    memory = (name for row in rows for name in row if name.startswith(_MEMORY))
    names = dict.fromkeys((*HEADLINES, *memory))
    values = {name: float(row[name]) for name in names for row in rows if row.get(name) is not None}
    return {"step": float(rows[-1]["step"])} | values if rows else {}


def _show_last_words(run: RunFolder) -> None:
    try:
        create_markdown_artifact(
            redact(as_markdown(run.read())),
            key="report",
            description="Why the run failed, what it measured last, and what to do next.",
            is_first=True,
        )
    except ValueError as error:  # the record itself cannot be read
        _logger.warning("the last words could not be shown: %s", error)


def as_markdown(record: RunRecord) -> str:
    """Returns the last words of a run as a page."""
    lines = [
        f"# {record.run_id}: {record.status} after {record.steps} steps\n",
        f"**Why:** {_plain(record.reason)}\n",
        f"**What to do next:** {record.next_step}",
    ]
    lines += [f"\n{_plain(str(fault))}" for fault in later_attempts(record)]
    peaks = {f"{name} at most, GiB": gib for name, gib in record.host_peak_gib.items()}
    if measured := record.last_metrics | peaks:
        rows = [[name, f"{value:.4g}"] for name, value in measured.items()]
        lines += ["", markdown_table(["last measured", ""], rows, numbers=[1])]
    return "\n".join(lines) + "\n"


def _room(error: OutOfMemory, run: RunFolder, config: RunConfig | None) -> str:
    """Returns which settings make room where it was missing, and the command that takes them."""
    again = f"the same command with run_id={run.run_id}"  # since settings change
    if (flow_run := own_flow_run()) is not None and flow_run.deployment_id is not None:
        again = f"Retry would fail again: a Custom run with the overrides run_id={run.run_id}"
    helpful = settings_that_help(config, run, error) if config else []
    if not helpful:
        others = [*beyond_recovery(config or RunConfig(), error.phase), "more memory"]
        return f"take {' or '.join(others)}; {again}"
    best, *others = helpful
    more = f" ({' or '.join(others)} would help as well)" if others else ""
    return f"{again} {best}{more}"


def _plain(text: str | None) -> str:
    """Returns an error's text so that markdown shows it as it is."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text or "(no message)")


class _End(logging.Filter):
    """Logs a mistake once, in one line, and no `Crash detected!` of a stop that was asked for."""

    _logged: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, _MISTAKES) and error is not self._logged:
            self._logged = error
            record.msg = one_line(error)
            record.args = ()
            record.exc_info = None
            return True
        text = record.getMessage()
        return not (
            text == "Finished in state Completed()"  # of each task: the next one's start says it
            or (self._logged is not None and str(self._logged) in text)
            or (text.startswith("Crash detected!") and (is_cancelled() or is_suspended()))
        )


def prepare_for_flow_runs() -> None:
    """Makes flow runs of this process outlive lost leases, and their logs end in plain words."""
    outlive_lost_leases()
    end = _End()
    for name in PREFECTS_RUN_LOGGERS:
        logging.getLogger(name).addFilter(end)
