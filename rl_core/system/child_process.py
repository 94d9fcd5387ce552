"""A child process of ours, `python -m MODULE`, and the channel between it and its parent.

    child = Child("package.module", "argument")     # the parent
    channel = channel_to_parent()                   # in `package.module`, as its first act

A message is a line of JSON: what a child that runs a user's code sends is never unpickled. The
channel is a socket of its own: on the standard streams anybody may print. A `Connection` of
multiprocessing would wait without limit for a reader, and for the rest of a message.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import IO, Any, Final

import psutil

_READ_BYTES: Final = 2**16


class Channel:
    """One end; any thread may send, one at a time may receive."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.RLock()  # a signal's handler may send as well
        self._unread = b""

    def send(
        self,
        message: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        default: Callable[[Any], Any] = str,
    ) -> None:
        """Sends a message.

        Args:
            message: of plain values.
            timeout_s: for the other end to read it; None waits for as long as it lives.
            default: makes a plain value of any other.

        Raises:
            TimeoutError: nobody reads.
            OSError: the other end is closed.
        """
        line = json.dumps(message, default=default).encode() + b"\n"
        with self._sending:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(line)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Returns the next message.

        Args:
            timeout_s: for the whole of it; what came until then is kept for the next call.

        Raises:
            TimeoutError: it did not come.
            EOFError: the other end is closed, or its process is dead.
            ValueError: that was no message.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self._socket.settimeout(left_s)
            try:
                part = self._socket.recv(_READ_BYTES)
            except ConnectionResetError:
                part = b""
            if not part:
                raise EOFError
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"{line[:80]!r} is no message")
        return message

    def shut(self, how: int = socket.SHUT_RDWR) -> None:
        """Lets both ends see the end: `SHUT_WR` only the other, `SHUT_RDWR` who waits here too."""
        with suppress(OSError):
            self._socket.shutdown(how)

    def close(self) -> None:
        """Closes this end, at which nobody waits any more."""
        self._socket.close()

    def to_be_inherited(self) -> str:
        """Returns the last argument of a program that takes this process's place."""
        self._socket.set_inheritable(True)
        return str(self._socket.fileno())


class Child:
    """A process in a session of its own: a terminal's Ctrl-C is for its parent alone.

    Args:
        module: what it runs; its first act is `channel_to_parent`.
        arguments: in its `sys.argv`. Everybody on the machine can read them: no secrets.
        output: where it prints to.
        environment: variables besides ours.

    Raises:
        OSError: the system has no process left.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        output: IO[bytes] | int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *map(str, arguments), str(descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[descriptor],
                env=os.environ | dict(environment or {}),
                start_new_session=True,
            )
        self.channel = Channel(ours)

    def kill(self) -> None:
        """Ends it and all that it started, also in another session; harmless when repeated."""
        started = []
        with suppress(psutil.Error):
            if self.process.poll() is None:
                started = psutil.Process(self.process.pid).children(recursive=True)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in started:
            with suppress(psutil.Error):
                process.kill()
        self.channel.shut()  # a process that nobody found may hold the other end
        self.process.wait()


def channel_to_parent() -> Channel:
    """Returns the channel to the parent that started this process as its `Child`."""
    end = socket.socket(fileno=int(sys.argv.pop()))
    end.set_inheritable(False)  # else a grandchild's life would look like ours
    return Channel(end)


def pack(value: object) -> str:
    """Returns a value as the text of a message; only for a child that runs no user's code."""
    return b64encode(pickle.dumps(value)).decode()


def unpack(text: str) -> Any:
    """Returns what `pack` made a text of: it came by a private way."""
    return pickle.loads(b64decode(text))


def how_it_ended(code: int) -> str:
    """Returns an exit code in words: `exit code 3`, `killed by SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    names = {number.value: number.name for number in signal.Signals}
    return f"killed by {names.get(-code, f'signal {-code}')}"
