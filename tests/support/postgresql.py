"""A PostgreSQL cluster of a test's own, on a free loopback port, to keep Prefect's records in."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_head import free_ports
from tests.support.waiting import wait_for

_DEBIAN = Path("/usr/lib/postgresql")
_QUICK = ("fsync=off", "listen_addresses=127.0.0.1", "unix_socket_directories=")


@contextmanager
def postgresql() -> Iterator[str]:
    """Yields the URL of an empty database; skips where no PostgreSQL is installed, but in CI."""
    found = shutil.which("initdb") or max(map(str, _DEBIAN.glob("*/bin/initdb")), default=None)
    if found is None:
        assert "MUST_MOUNT" not in os.environ, "no PostgreSQL: apt-get install postgresql"
        pytest.skip("no PostgreSQL is installed (apt-get install postgresql)")
    programs = Path(found).resolve().parent  # distributions link some of them elsewhere
    # It refuses to be root.
    user: dict[str, Any] = {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as folder:
        if user:
            shutil.chown(folder, **user)
        made = [programs / "initdb", "-D", f"{folder}/data", "-U", "prefect", "-A", "trust"]
        made += ["-E", "UTF8", "--locale=C", "--no-sync"]
        subprocess.run(made, cwd=folder, check=True, stdout=subprocess.DEVNULL, **user)
        settings = [word for setting in _QUICK for word in ("-c", setting)]
        start = [programs / "postgres", "-D", f"{folder}/data", "-p", str(port), *settings]
        with Path(folder, "log").open("w") as log:
            server = subprocess.Popen(start, cwd=folder, stdout=log, stderr=log, **user)
        try:
            ready = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
            wait_for(lambda: subprocess.run(ready).returncode == 0)
            yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
        finally:
            server.send_signal(signal.SIGINT)  # ends at once, whoever is connected
            server.wait(60)
