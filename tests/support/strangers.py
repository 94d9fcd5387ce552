"""Another account of this machine, as which tests attack."""

import base64
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_prefect
from tests.support.waiting import wait_for

NOBODY = 65534
STRANGER = NOBODY if os.geteuid() == 0 else os.geteuid()
"""Another user, where we can become one."""
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@contextmanager
def listening_as(user: int, host: str = "127.0.0.1", port: int = 0) -> Iterator[socket.socket]:
    """Yields a socket that a process of this user opened, and that listens."""
    mine = os.geteuid()
    os.seteuid(user)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = socket.create_server((host, port), family=family)
    finally:
        os.seteuid(mine)
    with server:
        yield server


class _Poison:
    """Runs a command as soon as it is unpickled."""

    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (self._command,)


class FakePrefect:
    """What a program that poses as a Prefect server was sent, and whether its poison worked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes = folder / "notes"

    def poison(self) -> None:
        """Leaves a file that Prefect takes for a result."""
        bad = _Poison(f"touch {self.folder / 'sprung'}")
        metadata = {"storage_key": fake_prefect.KEY, "serializer": {"type": "pickle"}}
        result = base64.b64encode(pickle.dumps(bad)).decode()
        file = self.folder / fake_prefect.KEY
        file.write_text(json.dumps({"metadata": metadata, "result": result}))

    @property
    def requests(self) -> list[dict[str, Any]]:
        """What it was sent, oldest first."""
        return [json.loads(line) for line in self.notes.read_text().splitlines()][1:]

    @property
    def has_run_code(self) -> bool:
        """Its poison was unpickled."""
        return (self.folder / "sprung").exists()


@contextmanager
def fake_prefect_as(user: int, port: int = 0) -> Iterator[FakePrefect]:
    """Yields a program of a user's that takes a port, and whose answers are to run code here."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fake = FakePrefect(folder)
        fake.poison()
        for path in (folder, *folder.iterdir()):
            os.chown(path, user, user)
        folder.chmod(0o755)
        who = ("-I", fake_prefect.__file__, str(port), fake.notes, name, str(user))
        with subprocess.Popen((sys.executable, *who)) as process:
            try:
                wait_for(fake.notes.exists, process=process)
                yield fake
            finally:
                process.kill()
