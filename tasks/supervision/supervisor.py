"""Runs work with Ray in a watched process: if that dies or stalls, it is an exception here."""

import logging
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar, cast

from rl_core.config.run import RunConfig
from rl_core.errors import Stalled, WorkerDied
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.waiting import waits_in_words
from rl_core.system import process_group
from rl_core.system.atomic import open_own
from rl_core.system.child_process import Child, how_it_ended, pack, unpack
from rl_core.system.log_file import Log
from rl_core.system.process_env import credentials_for
from rl_core.system.redaction import redact_error
from rl_core.system.signals import GRACE_S, StopSignals
from rl_core.system.waits import OF_TRAINING
from tasks.supervision.worker_logs import TRAINER_LOGGER, worker_logs

_SHUTDOWN_S: Final = 8.0  # for a child, after its grace period, to save and end its workers
_EXIT_S: Final = 5.0
_STOPPED: Final = tuple(
    code for number in (signal.SIGTERM, signal.SIGINT) for code in (128 + number, -number)
)
"""Exit codes of a child that was stopped: by its own handler, or before it had one."""
_STARTING: Final = ("start", "load")  # Ray, engines and models: no phase of a step
_START_S: Final = 1800.0
_POLL_S: Final = 0.2
_DUMP_S: Final = 2.0
_LINES_SHOWN: Final = 3
_TELL_S: Final = 60.0
"""Seconds without progress after which the log names what is waited for, then after twice that."""
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Watched:
    """A process that is watched, and the only credentials that it gets."""

    name: str
    log_folder: Path
    """Its output is in `<name>.log` there, with the files of its workers; a run's is above it."""
    stall_s: float
    grace_s: float = GRACE_S
    """In which it saves and ends after SIGINT or SIGTERM."""
    joins_ray: bool = False
    logs_to_wandb: bool = False
    lends: Collection[str] = ()
    """Variables for a reward function."""

    @classmethod
    def of_run(cls, name: str, config: RunConfig, run: RunFolder) -> Self:
        """Returns a process of a run, which does not log to wandb."""
        return cls(
            name,
            run.path / "workers",
            config.watchdog.stall_s,
            grace_s=config.trainer.stop_grace_s,
            joins_ray=config.resources.ray_address is not None,
            lends=config.reward.env,
        )

    @property
    def log_file(self) -> Path:
        """Where its output is."""
        return self.log_folder / f"{self.name}.log"

    def waits(self) -> str:
        """Returns, as text, what it waits for, `nothing that is known` if it has noted nothing."""
        return " | ".join(waits_in_words(self.log_folder.parent)) or "nothing that is known"


_KEPT: Final[ContextVar[list[tuple[Child, str]] | None]] = ContextVar("kept child", default=None)
"""Within `between_attempts`: a child that waits for the next one, and its processes' group."""


@contextmanager
def between_attempts() -> Iterator[None]:
    """Lets `call_supervised` use one child for several attempts in the block.

    One that has failed waits there for the next attempt, with the engines that it has kept. No
    process outlives the block.
    """
    kept: list[tuple[Child, str]] = []
    token = _KEPT.set(kept)
    try:
        yield
    finally:
        _KEPT.reset(token)
        for child, group in kept:
            _end(child, group)


def keeps_engines() -> bool:
    """Returns whether another attempt may follow, for which a child may keep its engines."""
    return _KEPT.get() is not None


def call_supervised(
    process: Watched,
    function: Callable[..., _Result],
    arguments: Mapping[str, Any],
    logger: Log,
    on_step: Callable[[int, int, dict[str, float]], None] = lambda step, last_step, metrics: None,
) -> _Result | None:
    """Returns `function(reporter, **arguments)`, called in a child process; None if it was stopped.

    SIGINT and SIGTERM are handed to the child, which saves and ends within its `grace_s`; then they
    have their usual effect here. However this function ends, no process that the child started
    outlives it, unless `between_attempts` keeps them. If this process dies, the child leaves by
    itself.

    Warnings and errors of its workers also go to `logger`. `on_step` is called with what the child
    sends by `Reporter.step`.

    WorkerDied if the child was killed, Stalled if nothing moved for `stall_s` seconds (it saves
    what was learned first, if it can), else the error that `function` raised.
    """
    process.log_folder.mkdir(exist_ok=True)
    outcome: dict[str, Any] = {}
    with StopSignals(process.grace_s + _SHUTDOWN_S) as stop:
        child, group = _kept_or_new(process)
        try:
            with worker_logs(process.log_folder, logger):
                with suppress(OSError):  # it died at once: the end of its messages shows that
                    lent = credentials_for(names=process.lends)
                    if process.logs_to_wandb:
                        lent |= credentials_for("wandb")
                    job = pack((function, dict(arguments)))
                    child.send({"job": job, "grace_s": process.grace_s, "lent": lent})
                for message in _messages(child, stop, process, group, logger):
                    if not _tell(message, on_step, logger):
                        outcome = message
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(0 if outcome.get("stays") else _EXIT_S)
        except Stalled:
            if not stop.requested():
                raise
        finally:
            kept = _KEPT.get()
            if kept is None or stop.requested() or not outcome.get("stays"):
                _end(child, group)
            else:
                kept.append((child, group))
            (process.log_folder.parent / OF_TRAINING).unlink(missing_ok=True)
        code = child.process.returncode
        if stop.requested():
            if "done" not in outcome and code not in _STOPPED:
                logger.warning(
                    "%s failed while it was stopping: %s",
                    process.name,
                    _how(code, process.log_file),
                )
            return None
        return cast("_Result", _result(outcome, code, process))


def _result(outcome: Mapping[str, Any], code: int, process: Watched) -> Any:
    """Returns what a child's last message holds, or raises the error that it holds."""
    if "error" in outcome:
        error = unpack(outcome["error"])
        redact_error(error)  # before Prefect stores its text as the task run's state
        raise error
    if "done" not in outcome:
        raise WorkerDied(process.name, _how(code, process.log_file))
    return unpack(outcome["done"])


def _kept_or_new(process: Watched) -> tuple[Child, str]:
    """Returns the child that was kept, if it lives, else a new one, and its processes' group."""
    if kept := _KEPT.get():
        child, group = kept.pop()
        if child.process.poll() is None:
            return child, group
        _end(child, group)
    return _start(process)


def _start(process: Watched) -> tuple[Child, str]:
    """Returns a new child, and the name of the group of its processes."""
    group = process_group.new_group()
    with open_own(process.log_file, "a") as log:
        child = Child(
            "tasks.supervision.child",
            process.name,
            output=log,
            needs=["ray"] if process.joins_ray else [],
            environment={process_group.PROCESS_GROUP: group},
        )
    return child, group


def _end(child: Child, group: str) -> None:
    """Ends a child and all its processes."""
    child.close()
    process_group.end_process_group(group)
    process_group.sweep_sessions()


@dataclass
class _Watchdog:
    """Looks whether a child makes progress; if not, asks it to save and end."""

    process: Watched
    group: str
    logger: Log
    phase: str = "start"
    moved_at: float = field(default_factory=lambda: time.monotonic())
    tell_after_s: float = _TELL_S
    stalled: Stalled | None = None

    def hear(self, message: Mapping[str, Any]) -> None:
        """Notes the child's progress; once it has stalled, nothing counts."""
        self.phase = message.get("progress", self.phase)
        if "log" not in message and self.stalled is None:
            self.moved_at = time.monotonic()
            self.tell_after_s = _TELL_S

    def look(self, child: Child) -> None:
        """Logs what a silent child waits for, and stops one that has stalled."""
        silent_s = time.monotonic() - self.moved_at
        is_starting = self.phase in _STARTING
        stall_s = self.process.stall_s
        limit_s = max(stall_s, _START_S) if is_starting else stall_s
        if self.stalled is not None or silent_s <= min(limit_s, self.tell_after_s):
            return
        words = f"no progress for {silent_s:.0f} s: {self.process.waits()}"
        if silent_s <= limit_s:
            self.tell_after_s *= 2
            self.logger.info("%s", words)
            return
        limit = f"a start may take {limit_s:g}" if is_starting else f"watchdog.stall_s={stall_s:g}"
        self.logger.error("stalled in %s: %s (%s)", self.phase, words, limit)
        process_group.dump_stacks(self.group)
        time.sleep(_DUMP_S)
        more = "the files in workers/ end with the stacks of its threads"
        self.stalled = Stalled(self.phase, f"{words} ({limit}); {more}")
        child.process.send_signal(signal.SIGTERM)  # saves what was learned
        self.moved_at = time.monotonic()

    def is_over(self) -> bool:
        """Returns whether a stalled child has had its time to save and end."""
        given_s = self.process.grace_s + _SHUTDOWN_S
        return self.stalled is not None and time.monotonic() - self.moved_at > given_s


def _messages(
    child: Child, stop: StopSignals, process: Watched, group: str, logger: Log
) -> Iterator[dict[str, Any]]:
    """Yields the child's messages until it ends; passes on a stop that is requested meanwhile."""
    passed_on: signal.Signals | None = None
    watchdog = _Watchdog(process, group, logger)
    while not watchdog.is_over():
        if stop.asked_by not in (None, passed_on):
            passed_on = _pass_on(stop, child, logger)
        lives = child.process.poll() is None  # before receive(): its last messages are still read
        try:
            message = child.receive(_POLL_S if lives else _EXIT_S)
        except TimeoutError:
            if not lives:
                break
            watchdog.look(child)
        except EOFError:
            break
        except ValueError:  # a signal cut a message short
            continue
        else:
            watchdog.hear(message)
            yield message
            if message.get("stays"):
                break
    if watchdog.stalled is not None:
        raise watchdog.stalled


def _pass_on(stop: StopSignals, child: Child, logger: Log) -> signal.Signals:
    assert stop.asked_by is not None
    limit = "Ctrl-C again does not wait for that"
    if stop.asked_by is signal.SIGTERM:
        limit = f"that may take {stop.grace_s:g} s"
    logger.warning("saving what was done, then stopping: %s", limit)
    child.process.send_signal(stop.asked_by)
    return stop.asked_by


def _tell(
    message: Mapping[str, Any], on_step: Callable[[int, int, dict[str, float]], None], logger: Log
) -> bool:
    """Passes a message on; False for the last one, which is `done` or `error`."""
    if "step" in message:
        on_step(*message["step"])
    elif "log" in message:
        name, level, text = message["log"]
        to = logger if name == TRAINER_LOGGER else logging.getLogger(name)
        to.log(level, "%s", text)
    return not message.keys().isdisjoint({"step", "log", "progress"})


def _how(code: int, log_file: Path) -> str:
    lines = log_file.read_text(errors="replace").splitlines()
    last = [line.strip() for line in lines if line.strip()][-_LINES_SHOWN:]
    return f"{how_it_ended(code)}; {log_file} ends with: {' | '.join(last) or '(nothing)'}"
