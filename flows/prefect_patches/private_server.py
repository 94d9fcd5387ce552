"""A private Prefect server for one command, where the user has none: started, awaited, stopped.

Prefect's own temporary server would do, but for three things: it shares our process group, so that
Ctrl-C stops it before the run's last state is told; it starts after our imports instead of beside
them; and it makes us import the server's code.
"""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from rl_core.system.atomic import locked

STARTUP_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 5.0
_OUTLIVES_NOBODY = """
import ctypes, os, runpy, signal, sys
parent = int(sys.argv.pop(1))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
if os.getppid() != parent:  # it died before we asked
    sys.exit(1)
runpy.run_module("uvicorn", run_name="__main__", alter_sys=True)
"""
"""Has the kernel stop the server with a parent that was killed, which stops nothing any more."""
_APP = (
    *("--factory", "prefect.server.api.server:create_app", "--host", "127.0.0.1"),
    *("--log-level", "critical"),
)
_SERVER_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT__SERVER_EPHEMERAL": "1",  # as Prefect's temporary server: no loops for schedules
    "PREFECT__SERVER_FINAL": "1",
}


def start_private_server() -> PrivateServer | None:
    """Starts a server for this process, which stops with it; None where an API is configured.

    It keeps its records where Prefect keeps them (PREFECT_HOME), so a server that is started later
    shows these runs.
    """
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    if settings.api.url is not None:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return PrivateServer(port, settings.home)


class PrivateServer:
    """A Prefect server on a loopback port: `connect` before the first flow run."""

    def __init__(self, port: int, home: Path) -> None:
        self._starting = ExitStack()
        # One at a time: two that make the database of a new PREFECT_HOME together both fail.
        self._starting.enter_context(locked(home))
        self._url = f"http://127.0.0.1:{port}/api"
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _OUTLIVES_NOBODY, str(os.getpid())),
                *(*_APP, "--port", str(port)),
            ],
            env={**os.environ, **_SERVER_ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        # At exit, and not sooner: Prefect sends its last logs and events just before.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Stops the server and waits until it is gone."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def connect(self) -> None:
        """Waits until the server answers and points this process at it.

        Raises:
            RuntimeError: it died, or does not answer.
        """
        deadline = time.monotonic() + STARTUP_TIMEOUT_S
        with self._starting:
            while not self._answers():
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(
                        f"the private Prefect server did not start (exit {self._process.poll()}): "
                        "start one with `prefect server start` and set PREFECT_API_URL to see why"
                    )
                time.sleep(0.1)
        from prefect.context import refresh_global_settings_context

        os.environ["PREFECT_API_URL"] = self._url
        refresh_global_settings_context()

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self._url}/health", timeout=5).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False
