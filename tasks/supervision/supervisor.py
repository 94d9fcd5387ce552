"""Work with Ray in a watched process: whatever kills or stalls it is an exception here."""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from rl_core.errors import Stalled, WorkerDied
from rl_core.system.log_file import Log
from rl_core.system.process_group import (
    PROCESS_GROUP,
    dump_stacks,
    end_process_group,
    new_process_group,
    sweep_sessions,
)
from rl_core.system.signals import GRACE_S, StopSignals
from tasks.supervision.worker_logs import TRAINER_LOGGER, worker_logs

_SHUTDOWN_S: Final = 8.0
"""Seconds that a child has, beyond its grace period, to save and to end its workers."""
_EXIT_S: Final = 5.0
_STOPPED: Final = (128 + signal.SIGTERM, -signal.SIGTERM)
"""Exit codes of a child that was stopped: while it worked, and before it could."""
_POLL_S: Final = 0.2
_DUMP_S: Final = 2.0
_LINES_SHOWN: Final = 3
_Result = TypeVar("_Result")


def call_supervised(
    function: Callable[..., _Result],
    arguments: Mapping[str, Any],
    *,
    name: str,
    log_folder: Path,
    stall_s: float,
    logger: Log,
    on_step: Callable[[int, int, dict[str, float]], None] = lambda step, last_step, metrics: None,
) -> _Result | None:
    """Returns `function(channel, **arguments)`, called in a child process; None if it was stopped.

    SIGINT and SIGTERM are handed to the child, which ends what it does as it sees fit; then they
    are raised here as they would have been. However this function ends, no process that the child
    started outlives it. If this process dies, the child leaves by itself.

    Args:
        function: one of a module of ours; its first argument is the child's `Channel`.
        arguments: the others, which can be pickled.
        name: what the child is called; what it prints is in `<name>.log`.
        log_folder: where that lies, and the files of the workers that it starts.
        stall_s: seconds without any progress after which it is ended.
        logger: hears the workers' warnings and errors.
        on_step: called with what the child tells by `Channel.step`.

    Raises:
        WorkerDied: the child was killed.
        Stalled: nothing moved for `stall_s`.
        Exception: whatever `function` raised.
    """
    log_file = log_folder / f"{name}.log"
    log_folder.mkdir(exist_ok=True)
    group = new_process_group()
    outcome: dict[str, Any] = {}
    with StopSignals(GRACE_S + _SHUTDOWN_S) as stop:
        ours, child = _start(name, (function, dict(arguments)), group, log_file)
        try:
            with ours, worker_logs(log_folder, logger):
                messages = _messages(ours, child, stop)
                for message in _watched(messages, stop, stall_s, group, logger):
                    if "step" in message:
                        on_step(*message["step"])
                    elif "log" in message:
                        _log(message["log"], logger)
                    elif "progress" not in message:
                        outcome = message
            with suppress(subprocess.TimeoutExpired):
                child.wait(_EXIT_S)
        finally:
            child.kill()
            code = child.wait()
            end_process_group(group)
            sweep_sessions()
        if stop.requested():
            if "done" not in outcome and code not in _STOPPED:
                logger.warning("%s was stopped while it failed: %s", name, _how(code, log_file))
            return None
        if "error" in outcome:
            raise _unpacked(outcome["error"])
        if "done" not in outcome:
            raise WorkerDied(name, _how(code, log_file))
        return cast("_Result", _unpacked(outcome["done"]))


def _start(
    name: str, job: object, group: str, log_file: Path
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts the child; returns the socket that it speaks through, and the process."""
    ours, theirs = socket.socketpair()
    with theirs, log_file.open("ab") as log:
        # Its own session: a terminal's Ctrl-C goes to us alone, and it hears of it once.
        child = subprocess.Popen(
            [sys.executable, "-m", "tasks.supervision.child", name, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=[theirs.fileno()],
            env=os.environ | {PROCESS_GROUP: group},
            start_new_session=True,
        )
    with suppress(OSError):  # it died at once: the end of its messages says so
        ours.sendall(b64encode(pickle.dumps(job)) + b"\n")
    return ours, child


def _messages(
    ours: socket.socket, child: subprocess.Popen[bytes], stop: StopSignals
) -> Iterator[dict[str, Any] | None]:
    """Yields the child's messages until it ends; None now and then, when there is none.

    A stop that is asked for meanwhile is handed to it.
    """
    is_told = False
    data = b""
    ours.settimeout(_POLL_S)
    while True:
        if stop.requested() and not is_told:
            is_told = True
            child.terminate()
        try:
            part = ours.recv(2**16)
        except TimeoutError:
            if child.poll() is not None:
                return
            yield None
            continue
        except ConnectionResetError:
            return
        if not part:
            return
        *lines, data = (data + part).split(b"\n")
        yield from filter(None, map(_parse, lines))


def _parse(line: bytes) -> dict[str, Any] | None:
    """Returns a message, or None for a line that a signal cut short."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None


def _watched(
    messages: Iterator[dict[str, Any] | None],
    stop: StopSignals,
    stall_s: float,
    group: str,
    logger: Log,
) -> Iterator[dict[str, Any]]:
    """Yields the messages; raises `Stalled` when they tell of no progress for `stall_s`.

    A stop that is asked for has a limit of its own.
    """
    phase, moved_at = "start", time.monotonic()
    for message in messages:
        if message is not None:
            if "log" not in message:
                moved_at = time.monotonic()
            phase = message.get("progress", phase)
            yield message
        elif (silent_s := time.monotonic() - moved_at) > stall_s and not stop.requested():
            detail = f"no progress for {silent_s:.0f} s (watchdog.stall_s={stall_s:g})"
            logger.error("stalled in %s: %s", phase, detail)
            dump_stacks(group)
            time.sleep(_DUMP_S)
            raise Stalled(phase, f"{detail}; the stacks of its threads end the files in workers/")


def _log(record: list[Any], logger: Log) -> None:
    name, level, text = record
    to = logger if name == TRAINER_LOGGER else logging.getLogger(name)
    to.log(level, "%s", text)


def _unpacked(data: str) -> Any:
    """Returns what a child of ours packed: it came by a private way."""
    return pickle.loads(b64decode(data))


def _how(code: int, log_file: Path) -> str:
    """Returns how the child ended and what it said last."""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = log_file.read_text(errors="replace").splitlines()
    said = [line.strip() for line in lines if line.strip()][-_LINES_SHOWN:]
    return f"{how}; {log_file} ends with: {' | '.join(said) or '(nothing)'}"
