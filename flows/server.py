"""A private Prefect server for one command, where the user has none: started, awaited, stopped.

Prefect's own temporary server would do, but for three things: it shares our process group, so that
Ctrl-C stops it before the run's last state is told; it starts after our imports instead of beside
them; and it makes us import the server's code.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

STARTUP_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 5.0
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


@contextmanager
def prefect_api() -> Iterator[PrefectApi]:
    """Yields the API that runs report to: the configured one, else a private one for the block.

    The private server keeps its records where Prefect keeps them (PREFECT_HOME), so a server that
    is started later shows these runs.
    """
    from prefect.settings import get_current_settings

    if get_current_settings().api.url is not None:
        yield PrefectApi(None, "")
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", *_APP, "--port", str(port)],
        env={**os.environ, **_SERVER_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield PrefectApi(process, f"http://127.0.0.1:{port}/api")
    finally:
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class PrefectApi:
    """The API of one command: `connect` before the first flow run."""

    def __init__(self, process: subprocess.Popen[bytes] | None, url: str) -> None:
        self._process = process
        self._url = url

    def connect(self) -> None:
        """Waits for the private server and points this process at it; else does nothing.

        Raises:
            RuntimeError: it died, or does not answer.
        """
        if self._process is None:
            return
        deadline = time.monotonic() + STARTUP_TIMEOUT_S
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
