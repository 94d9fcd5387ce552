"""The trainer's process: `python -m tasks.train_child RUN_FOLDER SOCKET`, see supervision.py."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, NoReturn

from rl_core.process_env import apply_defaults, hide_cuda_only_packages

apply_defaults()
hide_cuda_only_packages()

from rl_core.config import RunConfig  # noqa: E402  # transformers comes with tasks.train
from rl_core.errors import first_line  # noqa: E402
from rl_core.family import FAMILY, dump_stacks_on_request, end_family  # noqa: E402
from rl_core.log_file import RedactingFormatter  # noqa: E402
from rl_core.run_owner import training  # noqa: E402
from rl_core.stopping import GRACE_S  # noqa: E402
from rl_core.tracking import RunFolder  # noqa: E402
from tasks.train import TRAINER_LOGGER, train_model  # noqa: E402

_LEAVING_S: Final = GRACE_S + 15.0
"""Seconds after which a trainer without a parent, or the one before it, has ended."""
_PROGRESS_INTERVAL_S: Final = 0.5
_logger = logging.getLogger("tasks.train_child")  # its __name__ is __main__


class Channel(logging.Handler):
    """Tells the parent what happens, a line of JSON each; a parent that is gone hears nothing.

    As a handler of loggers it tells what they say.
    """

    def __init__(self, to_parent: socket.socket) -> None:
        super().__init__(logging.INFO)
        self._socket = to_parent
        self._sending = threading.RLock()
        self._told: tuple[str, float] = ("", 0.0)

    def emit(self, record: logging.LogRecord) -> None:
        """Tells one log record."""
        self._send(log=[record.name, record.levelno, self.format(record)])

    def step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Tells that a step is done."""
        self._send(step=[step, last_step, metrics])

    def progress(self, phase: str) -> None:
        """Tells that a phase has begun or is a piece further, unless that was said just now."""
        told, told_at = self._told
        if phase != told or time.monotonic() - told_at > _PROGRESS_INTERVAL_S:
            self._told = phase, time.monotonic()
            self._send(progress=phase)

    def done(self, step: int) -> None:
        """Tells that training is over, as its last word."""
        self._send(done=step)

    def error(self, error: Exception) -> None:
        """Tells what ended training, as its last word."""
        self._send(error=b64encode(_pickled(error)).decode())

    def _send(self, **message: Any) -> None:
        line = json.dumps(message, default=float).encode() + b"\n"
        with self._sending, suppress(OSError):
            self._socket.sendall(line)


def main() -> NoReturn:
    """Trains as the parent asks."""
    run, to_parent = RunFolder(Path(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
    to_parent.set_inheritable(False)  # else a grandchild's life would look like ours
    signal.signal(signal.SIGTERM, _leave)
    dump_stacks_on_request()
    with to_parent.makefile("r") as stream:
        job = json.loads(stream.readline())
    threading.Thread(target=_leave_with_parent, args=(to_parent,), daemon=True).start()
    channel = Channel(to_parent)
    _log_to(channel)
    sys.exit(_train(run, job, channel))


def _train(run: RunFolder, job: dict[str, Any], channel: Channel) -> int:
    """Returns the exit code."""
    try:
        with training(run, wait_s=_LEAVING_S):
            steps = train_model(
                RunConfig.model_validate(job["config"]),
                run,
                data=Path(job["data"]),
                model_path=Path(job["model"]),
                on_step=channel.step,
                logger=logging.getLogger(TRAINER_LOGGER),
                on_progress=channel.progress,
            )
    except Exception as error:  # whatever it is, the parent raises it
        _logger.exception("training failed:")
        channel.error(error)
        return 1
    channel.done(steps)
    return 0


def _log_to(channel: Channel) -> None:
    """Sends our loggers' records to the parent, and to this process's own log."""
    own = logging.StreamHandler()
    own.setFormatter(RedactingFormatter())
    for name in ("rl_core", "tasks"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.addHandler(channel)
        logger.addHandler(own)
        logger.propagate = False


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _leave_with_parent(to_parent: socket.socket) -> None:
    """Waits until the parent is gone, then has this process save and leave, or else dies."""
    with suppress(OSError):
        while to_parent.recv(1):
            pass
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    signal.pthread_kill(main_thread, signal.SIGTERM)
    time.sleep(_LEAVING_S)
    end_family(os.environ[FAMILY])
    os.kill(os.getpid(), signal.SIGKILL)


def _pickled(error: Exception) -> bytes:
    """Returns an error that can be unpickled: itself, or what it says."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001  # a foreign exception's own code runs here
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {first_line(error)}"))
    return data


if __name__ == "__main__":
    main()
