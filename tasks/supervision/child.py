"""A watched process: `python -m tasks.supervision.child NAME`, see supervisor.py."""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rl_core.system.process_env import apply_defaults, borrow, hide_cuda_only_packages, importing

apply_defaults()
hide_cuda_only_packages()

from rl_core.errors import first_line  # noqa: E402  # the called function loads torch
from rl_core.system.child_process import Channel, channel_to_parent, pack, unpack  # noqa: E402
from rl_core.system.log_file import RedactingFormatter  # noqa: E402
from rl_core.system.process_group import PROCESS_GROUP, dump_stacks_on_request, end_process_group  # noqa: E402
from rl_core.system.signals import LEAVING_S  # noqa: E402

if TYPE_CHECKING:
    from rl_core.workers.cluster import Workers
    from rl_core.workers.kept import KeptEngines

_PROGRESS_INTERVAL_S: Final = 0.5
_logger = logging.getLogger("tasks.supervision.child")  # its __name__ is __main__


class Reporter(logging.Handler):
    """Sends events to the parent, if it still exists, and as a log handler also log records."""

    def __init__(self, parent: Channel) -> None:
        super().__init__(logging.INFO)
        self.kept: KeptEngines[Workers] | None = None
        """What a job leaves for the next attempt."""
        self._parent = parent
        self._progress: tuple[str, float] = ("", 0.0)

    def emit(self, record: logging.LogRecord) -> None:
        """Sends one log record."""
        self._send(log=[record.name, record.levelno, self.format(record)])

    @property
    def stays(self) -> bool:
        """Whether this process waits for another job, because it has kept engines for it."""
        return self.kept is not None and self.kept.workers is not None

    def step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Sends that a step is done."""
        self._send(step=[step, last_step, {name: float(value) for name, value in metrics.items()}])

    def progress(self, phase: str) -> None:
        """Sends that a phase has begun or moved on; of one phase, at most every half second."""
        last_phase, sent_at = self._progress
        if phase != last_phase or time.monotonic() - sent_at > _PROGRESS_INTERVAL_S:
            self._progress = phase, time.monotonic()
            self._send(progress=phase)

    def done(self, result: object) -> None:
        """Sends the call's result, as the last message."""
        self._send(done=pack(result))

    def error(self, error: Exception) -> None:
        """Sends the error that ended the call, as the last message: pickled, or else as text.

        `stays`: this process has kept engines, and waits for the next attempt.
        """
        try:
            text = pack(error)
            unpack(text)
        except Exception:  # noqa: BLE001  # a foreign exception's own code runs here
            text = pack(RuntimeError(f"{type(error).__name__}: {first_line(error)}"))
        self._send(error=text, stays=self.stays)

    def _send(self, **message: Any) -> None:
        with suppress(OSError):
            self._parent.send(message)


def main() -> NoReturn:
    """Calls the function that the parent sends, and exits; after an error it may send another."""
    parent = channel_to_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    dump_stacks_on_request()
    request = parent.receive()
    jobs: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(
        target=_read, args=(parent, jobs, request["grace_s"] + LEAVING_S), daemon=True
    ).start()
    reporter = Reporter(parent)
    to_file = logging.StreamHandler()
    to_file.setFormatter(RedactingFormatter())
    for logger in map(logging.getLogger, ("rl_core", "tasks")):
        logger.setLevel(logging.INFO)
        logger.addHandler(reporter)
        logger.addHandler(to_file)
        logger.propagate = False
    try:
        while not _call(request, reporter):
            request = jobs.get()
        sys.exit(0)
    finally:
        if reporter.kept is not None:
            reporter.kept.close()


def _call(request: Mapping[str, Any], reporter: Reporter) -> bool:
    """Does a job and returns whether it is done; if it failed and nothing is kept, exits."""
    borrow(request["lent"])
    try:
        with importing():
            function, arguments = unpack(request["job"])
        result = function(reporter, **arguments)
    except Exception as error:  # whatever it is, the parent raises it
        _logger.exception("%s failed:", sys.argv[1])
        reporter.error(error)
        if not reporter.stays:
            sys.exit(1)
        return False
    reporter.done(result)
    return True


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _read(parent: Channel, jobs: SimpleQueue[dict[str, Any]], within_s: float) -> None:
    """Takes jobs until the parent is gone, then stops this process; kills it after `within_s`."""
    with suppress(OSError, EOFError):
        while True:
            jobs.put(parent.receive())
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)
    time.sleep(within_s)
    end_process_group(os.environ[PROCESS_GROUP])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
