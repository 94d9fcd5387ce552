"""A private Prefect server for one command, where the user has none: started, awaited, stopped.

Prefect's own temporary server would do, but for three things: it shares our process group, so that
Ctrl-C stops it before the run's last state is sent; it starts after our imports instead of during
them; and it makes us import the server's code.
"""

import atexit
import os
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from flows.errors import RunFailedError
from flows.prefect_patches.login import AUTH_STRING, SERVER_AUTH_STRING, new_login
from flows.prefect_patches.server_process import IN_A_SERVER, server_command
from rl_core.system.atomic import locked
from rl_core.system.process_env import environment_of_child
from tasks.preflight_checks.surroundings import why_no_prefect

_STARTUP_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 5.0
_SERVER_ENVIRONMENT = {
    "PREFECT_UI_ENABLED": "false",
    "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": "",
    "PREFECT_SERVER_LOGGING_LEVEL": "ERROR",
    "PREFECT__SERVER_EPHEMERAL": "1",  # as Prefect's temporary server: no loops for schedules
    IN_A_SERVER: "1",
}
_LAST_WORDS_OF_ALL = "Application startup failed"  # uvicorn's, after the cause


class PrivateServer:
    """A server on a loopback port, whose login is known to this process and its children only."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._login = new_login()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # as long as the server
        self._starting = ExitStack()
        # One at a time: two that make the database of a new PREFECT_HOME together both fail.
        self._starting.enter_context(locked(home))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self._url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"
            self._process = subprocess.Popen(
                server_command(listener, dies_with_us=True),
                env=environment_of_child("prefect")
                | _SERVER_ENVIRONMENT
                | {SERVER_AUTH_STRING: self._login},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=[listener.fileno()],
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
        """Waits until the server answers and points this process at it."""
        deadline = time.monotonic() + _STARTUP_TIMEOUT_S
        with self._starting:
            while why_no_prefect(self._url) is not None:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RunFailedError(_no_server(self._last_line(), self._home))
                time.sleep(0.1)
        from prefect.context import refresh_global_settings_context

        os.environ["PREFECT_API_URL"] = self._url
        os.environ[AUTH_STRING] = self._login
        refresh_global_settings_context()

    def _last_line(self) -> str:
        if self._process.poll() is None:
            return f"{self._url} did not answer in {_STARTUP_TIMEOUT_S:.0f} s"
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        causes = [line.strip() for line in lines if line.strip() and _LAST_WORDS_OF_ALL not in line]
        return causes[-1] if causes else f"exit {self._process.returncode}"


def start_private_server() -> PrivateServer | None:
    """Starts a server that stops with this process; None if an API is configured."""
    from prefect.settings import get_current_settings

    from flows.prefect_patches.own_server import obey_own_server_only

    settings = get_current_settings()
    if settings.api.url is not None:
        return None
    obey_own_server_only()
    try:
        return PrivateServer(settings.home)
    except OSError as error:
        raise RunFailedError(_no_server(error.strerror or str(error), settings.home)) from None


def _no_server(why: str, home: Path) -> str:
    return (
        f"the private Prefect server did not start: {why}\n"
        f"its records are in {home}: PREFECT_HOME=FOLDER takes another folder, "
        "PREFECT_API_URL=URL a server of your own"
    )
