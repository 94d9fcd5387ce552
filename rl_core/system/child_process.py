"""A child process of ours, `python -P -m MODULE`, and the channel between it and its parent.

A message is a line of JSON: what a child that runs a user's code sends is never unpickled. The
channel is a socket of its own, since any code may print on the standard streams. (A `Connection` of
multiprocessing would wait without limit for a reader, and for the rest of a message.)
"""

import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping
from contextlib import suppress
from socket import SHUT_RDWR, socket, socketpair
from typing import IO, Any

from rl_core.system.process_env import Need, environment_of_child


class Channel:
    """One end; any thread may send, one at a time may receive.

    A timeout holds for the socket, in both directions: threads that share an end have the same.
    """

    def __init__(self, end: socket) -> None:
        self.socket = end
        self._sending = threading.RLock()  # a signal's handler may send as well
        self._unread = b""

    def send(self, message: Mapping[str, Any], timeout_s: float | None = None) -> None:
        """Sends a message of plain values; others become text.

        OSError if the other end is closed, or (TimeoutError) nobody read it in time.
        """
        line = json.dumps(message, default=str).encode() + b"\n"
        with self._sending:
            self.socket.settimeout(timeout_s)
            self.socket.sendall(line)

    def receive(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Returns the next message; after a TimeoutError the part that came is kept.

        EOFError if the other end is closed, or its process dead; ValueError if it is no message.
        """
        deadline = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
        while b"\n" not in self._unread:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            self.socket.settimeout(None if timeout_s is None else left_s)
            part = b""
            with suppress(ConnectionResetError):
                part = self.socket.recv(2**16)
            if not part:
                raise EOFError
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError(f"{line[:80]!r} is no message")
        return message


class Child(Channel):
    """The parent's end, and the process, in a session of its own, which Ctrl-C does not reach.

    `module` calls `channel_to_parent`. Every user of the machine can read `arguments`: no secrets.
    Of our credentials the child has only those of `needs`. OSError if no process can be started.
    """

    def __init__(
        self,
        module: str,
        *arguments: object,
        output: IO[bytes] | int = subprocess.DEVNULL,
        needs: Collection[Need] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        ours, theirs = socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, *map(str, (*arguments, theirs.fileno()))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env=environment_of_child(*needs) | dict(environment or {}),
                start_new_session=True,
            )
        super().__init__(ours)

    def kill(self) -> None:
        """Kills it and all that it started, and ends any `receive` here; harmless when repeated."""
        # Not in the child, which starts faster without psutil.
        import psutil

        from rl_core.system.process_group import end_processes

        started = []
        with suppress(psutil.Error):
            if self.process.poll() is None:
                started = psutil.Process(self.process.pid).children(recursive=True)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        end_processes(started)  # in sessions of their own
        with suppress(OSError):
            self.socket.shutdown(SHUT_RDWR)
        self.process.wait()

    def close(self) -> None:
        """Kills it and closes this end."""
        self.kill()
        self.socket.close()


def channel_to_parent() -> Channel:
    """Returns the child's end, in a process that is a `Child`: its last argument."""
    end = socket(fileno=int(sys.argv.pop()))
    end.set_inheritable(False)  # else it stays open while a grandchild lives
    return Channel(end)


def how_it_ended(code: int) -> str:
    """Returns an exit code as text: `exit code 3`, `killed by SIGKILL`."""
    names = {-number: number.name for number in signal.Signals}
    return f"exit code {code}" if code >= 0 else f"killed by {names.get(code, f'signal {-code}')}"


def pack(value: object) -> str:
    """Returns a value as text, for a child that runs no user's code."""
    return b64encode(pickle.dumps(value)).decode()


def unpack(text: str) -> Any:
    """Returns the value of `pack`'s text; only from our own processes: it may run any code."""
    return pickle.loads(b64decode(text))
