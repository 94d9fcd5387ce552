"""`countdown-train serve`: Prefect's server, the deployments and a worker, until Ctrl-C.

The long way, a command each, is in docs/operations.md. What is there already (pool, deployments,
automations, a server at PREFECT_API_URL) is used and brought up to date. See serve_status.py, too.
"""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import psutil
import yaml
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.context import refresh_global_settings_context
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectAlreadyExists
from prefect.settings import get_current_settings
from prefect.workers.process import ProcessWorker

from flows.cli.serve_status import shown_as_up, status
from flows.cli.terminal import say
from flows.countdown_train import settings_of
from flows.errors import BadInputError, RunFailedError
from flows.missed_nights import close_lost, refused_since
from flows.prefect_patches import login
from flows.prefect_patches.own_server import with_plain_loopback
from flows.prefect_patches.server_process import IN_A_SERVER, server_command
from flows.settings.night import read_night, why_off
from rl_core.system.child_process import how_it_ended
from rl_core.system.network import LOOPBACK
from rl_core.system.process_group import end_processes, environment_of, members
from rl_core.system.words import in_one_line
from tasks.preflight_checks.surroundings import refuses_login, why_no_prefect

_ROOT: Final = Path(__file__).parents[2]
_PREFECT: Final = (sys.executable, "-P", "-m", "prefect")
_MARK: Final = "COUNTDOWN_TRAIN_SERVE"  # environment variable of all processes of one `serve`
_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_POOL: Final = "countdown"
_WORKER: Final = ("worker", "start", "--pool", _POOL, "--type", "process", "--limit", "1")
_DEPLOY: Final = ("--no-prompt", "deploy", "--prefect-file", "deployments/prefect.yaml", "--all")
_START_S: Final = 300.0
_LEAVE_S: Final = 45.0  # for a run to finish its step, save and leave (system/signals.py)
_STOP_S: Final = 15.0
_POLL_S: Final = 0.5
_LOOK_S: Final = 60.0  # between two looks for nights that were refused
_RESTARTS: Final = 3  # at most so many restarts of the server within `_RESTARTS_S`
_RESTARTS_S: Final = 600.0


def serve(words: Sequence[str]) -> None:
    """Starts all that deployments need, and stops it on Ctrl-C; what ends before starts again."""
    if list(words) == ["status"]:
        status()
        return
    if words:
        raise BadInputError(f"serve takes no settings: {words[0]!r}; it may be `serve status`")
    if not (_ROOT / "deployments" / "prefect.yaml").is_file():
        raise BadInputError(f"serve needs a checkout: there is no deployments/ in {_ROOT}")
    night = read_night()
    try:
        settings_of(night.preset, night.overrides)
    except BadInputError as error:
        raise BadInputError(f"deployments/night.yaml: overrides: {error}") from None
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup`
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as held, _Processes() as processes:
        url, restart = _server(processes)
        held.enter_context(shown_as_up(get_current_settings().home, url))
        names = ", ".join(_pool_and_automations())
        processes.call(*_DEPLOY)
        say(f"deployments  from deployments/prefect.yaml, and the automations {names}")
        if restart and urlsplit(url).hostname in LOOPBACK:  # all workers of this server are here
            for name in close_lost(set(map(_flow_run_of, psutil.process_iter()))):
                say(f"flow run     {name} is Crashed: its process is gone; Retry continues it")
        restart["worker"] = partial(processes.start, "worker", *_WORKER)
        restart["worker"]()
        off = why_off(night)
        when = f"preset={night.preset} at {night.at} ({night.timezone})"
        say(f"night        {f'none: {off}' if off else when}")
        say(f"worker       takes one run at a time; logs in {processes.logs}")
        say(f"from another terminal: {_run_it(url)}")
        say("Ctrl-C stops all of it; an active run saves first, and Retry continues it")
        processes.watch(restart)


def _server(processes: _Processes) -> tuple[str, dict[str, Callable[[], None]]]:
    """Returns the URL of the settings' server, or of one that is started here and how it starts."""
    settings = get_current_settings()
    if settings.api.url is not None and why_no_prefect(settings.api.url) is None:
        _look_at_login(settings.api.url)
        say(f"server       {settings.api.url.removesuffix('/api')}")
        return settings.api.url, {}
    api = settings.server.api
    url = with_plain_loopback(settings.api.url or f"http://{api.host}:{api.port}/api")
    address = urlsplit(url)
    host = address.hostname or api.host
    if settings.api.url is not None and host not in LOOPBACK:
        raise BadInputError(f"no Prefect server answers at PREFECT_API_URL={url}")
    # Held until we end: no start of the server frees the port.
    listener = _listening(host, address.port or api.port)
    os.environ["PREFECT_API_URL"] = url
    refresh_global_settings_context()  # the server's pages get the URL from it
    environment = {
        **login.server_environment(get_current_settings(), renew=True),
        IN_A_SERVER: "1",
    }
    users = api.auth_string
    file = login.login_file(settings.home)
    os.environ[login.AUTH_STRING] = (
        environment[login.SERVER_AUTH_STRING] if users is None else users.get_secret_value()
    )

    def start() -> None:
        processes.start("server", listener=listener, environment=environment)
        deadline = time.monotonic() + _START_S
        while why_no_prefect(url) is not None:
            processes.refuse_dead("server")
            if time.monotonic() > deadline:
                raise RunFailedError(f"the server did not start; see {processes.logs}")
            time.sleep(_POLL_S)

    start()
    say(f"server       {url.removesuffix('/api')}")
    where = f"`cat {file}`" if users is None else f"your {login.SERVER_AUTH_STRING}"
    say(f"login        new at each start, and the page asks once: paste {where}")
    return url, {"server": start}


def _look_at_login(url: str) -> None:
    """Warns of a server that serves everybody, and refuses one that does not serve us."""
    if get_current_settings().api.key is not None:  # of a cloud, which asks everybody for one
        return
    if refuses_login():
        raise BadInputError(
            f"the server at {url} refuses the login: set {login.AUTH_STRING} to what its "
            f"{login.SERVER_AUTH_STRING} is"
        )
    if httpx.get(f"{url}/admin/version", timeout=5).status_code != httpx.codes.UNAUTHORIZED:
        say(
            f"warning      {url} has no login: everybody who reaches it can run commands as you; "
            f"start it with {login.SERVER_AUTH_STRING}=name:password"
        )


def _run_it(url: str) -> str:
    """Returns the command that starts a run from any folder and terminal."""
    words = [f"PREFECT_API_URL={shlex.quote(url)}", "PREFECT_PLUGINS_ENABLED=true"]
    if "PREFECT_HOME" in os.environ:
        words.append(f"PREFECT_HOME={shlex.quote(str(get_current_settings().home))}")
    words.append(shlex.quote(str(Path(sys.executable).with_name("prefect"))))
    return " ".join([*words, "deployment run countdown-train/countdown-train"])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise BadInputError(
            f"port {port} of {host} is not free ({error.strerror}): set PREFECT_API_URL="
            f"http://{host}:{port}/api if a server is there, else PREFECT_SERVER_API_PORT"
        ) from None


def _pool_and_automations() -> list[str]:
    """Makes pool and automations, and returns their names; what is there and what is off stay."""
    refresh_global_settings_context()  # with the API's address
    template = ProcessWorker.get_default_base_job_template()
    pool = WorkPoolCreate(name=_POOL, type=ProcessWorker.type, base_job_template=template)
    content = yaml.safe_load((_ROOT / "deployments" / "automations.yaml").read_text())
    automations = [AutomationCore.model_validate(each) for each in content["automations"]]
    with get_client(sync_client=True) as client:
        with suppress(ObjectAlreadyExists):
            client.create_work_pool(pool)
        for automation in automations:
            if not client.read_automations_by_name(automation.name):
                client.create_automation(automation)
            # the client asks again where a busy server made one but answered 503: twice the same
            *doubles, first = client.read_automations_by_name(automation.name)
            for each in doubles:
                delete_if_there(client, each.id)
            if not says_the_same(first, automation):
                automation.enabled = first.enabled
                client.update_automation(first.id, automation)
    return [automation.name for automation in automations]


def delete_if_there(client: SyncPrefectClient, automation_id: UUID) -> None:
    """Deletes an automation; a busy server may do so, say 503, and then 404 to the repeat."""
    try:
        client.delete_automation(automation_id)
    except httpx.HTTPStatusError as error:
        if error.response.status_code != httpx.codes.NOT_FOUND:
            raise


def says_the_same(there: AutomationCore, automation: AutomationCore) -> bool:
    """Returns whether an automation needs no change, switched on or not.

    An update, even with equal content, makes the server forget the runs whose heartbeats it waits
    for: if their machine is gone, they stay Running, and each later night is Refused.
    """
    fields = {"description", "trigger", "actions"}
    return there.model_dump(include=fields) == automation.model_dump(include=fields)


class _Processes(AbstractContextManager["_Processes"]):
    """Prefect's long-running commands, which end in `__exit__` with all that they started.

    Each has its own session, so a terminal's Ctrl-C reaches only this process. It stops the worker
    and its runs first, then the server, which records how these ended.
    """

    def __init__(self) -> None:
        self.logs = get_current_settings().home / "serve"
        self.logs.mkdir(parents=True, exist_ok=True)
        self._mark = secrets.token_hex(8)
        self._started: dict[str, subprocess.Popen[bytes]] = {}

    def __exit__(self, *error: object) -> None:
        for signum in _STOPS:
            signal.signal(signum, signal.SIG_IGN)  # this is the stop
        if self._started:
            with suppress(OSError):  # the terminal may be gone
                say("stopping")
        server = self._started.pop("server", None)
        keeps = [] if server is None else [server.pid]
        for process in self._started.values():
            process.kill()  # a worker that is asked to stop kills its run before that can save
        for process in self._marked(keeps):
            with suppress(psutil.Error):
                if _is_flow_run(process) and not _is_flow_run(process.parent()):
                    process.terminate()
        self._end(keeps, _LEAVE_S)
        if server is not None:
            server.terminate()
        self._end([], _STOP_S)

    def start(
        self,
        name: str,
        *arguments: str,
        listener: socket.socket | None = None,
        environment: Mapping[str, str] = {},
    ) -> None:
        """Starts a command of Prefect's, or its server on a socket that it gets from us."""
        with (self.logs / f"{name}.log").open("ab") as log:
            self._started[name] = subprocess.Popen(
                server_command(listener, dies_with_us=False)
                if listener
                else [*_PREFECT, *arguments],
                cwd=_ROOT,
                pass_fds=[listener.fileno()] if listener else [],
                env={**self._environment(), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def call(self, *arguments: str) -> None:
        done = subprocess.run(
            [*_PREFECT, *arguments],
            cwd=_ROOT,
            env=self._environment(),
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RunFailedError(
                f"`prefect {' '.join(arguments)}` failed ({done.returncode})\n"
                f"{_end_of(done.stdout + done.stderr)}"
            )

    def watch(self, restart: Mapping[str, Callable[[], None]]) -> NoReturn:
        """Starts again what ends, a few times.

        A worker's run continues without it, and a second one would share its memory: so a new
        worker starts when that has ended.
        """
        restarts: deque[float] = deque(maxlen=_RESTARTS)
        began = datetime.now(UTC)
        looked_at = time.monotonic()
        sent = set[UUID]()
        while True:
            time.sleep(_POLL_S)
            if time.monotonic() - looked_at > _LOOK_S:
                _tell_of_refused(began, sent)
                looked_at = time.monotonic()
            for name, start in restart.items():
                if self._started[name].poll() is None or (
                    name == "worker" and any(map(_is_flow_run, self._marked([])))
                ):
                    continue
                now = time.monotonic()
                if len(restarts) == _RESTARTS and now - restarts[0] < _RESTARTS_S:
                    minutes = f"{_RESTARTS_S / 60:g} minutes"
                    say(f"the {name} is not started again: {_RESTARTS} restarts in {minutes}")
                    self.refuse_dead(name)
                restarts.append(now)
                say(f"{self._how_it_ended(name)}: it is started again, and runs continue")
                start()

    def refuse_dead(self, name: str) -> None:
        if self._started[name].poll() is not None:
            log = (self.logs / f"{name}.log").read_text(errors="replace")
            raise RunFailedError(f"{self._how_it_ended(name)}\n{_end_of(log)}")

    def _how_it_ended(self, name: str) -> str:
        ending = how_it_ended(self._started[name].returncode)
        return f"the {name} ended ({ending}), see {self.logs / name}.log"

    def _environment(self) -> dict[str, str]:
        environment = {**os.environ, _MARK: self._mark, "PWD": str(_ROOT)}  # prefect.yaml reads PWD
        # The lines of Prefect's commands belong in the logs.
        environment.pop("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", None)
        return environment

    def _marked(self, but: Sequence[int]) -> list[psutil.Process]:
        """Returns the living processes that descend from the commands, except these."""
        return [one for one in members(self._mark, _MARK) if one.pid not in but]

    def _end(self, but: Sequence[int], patience_s: float) -> None:
        """Waits until all except these have ended; kills what takes too long."""
        while (left := self._marked(but)) and end_processes(left, patience_s):
            pass


def _tell_of_refused(began: datetime, sent: set[UUID]) -> None:
    """Sends messages of nights that no other process can send: they were refused since `began`."""
    for flow_run in refused_since(began):
        if flow_run.id not in sent:
            sent.add(flow_run.id)
            from flows.nightly import tell_of_refused  # with all that a night needs

            say(tell_of_refused(flow_run).split("\n", 1)[0])


def _is_flow_run(process: psutil.Process | None) -> bool:
    return process is not None and _flow_run_of(process) is not None


def _flow_run_of(process: psutil.Process) -> str | None:
    with suppress(psutil.Error, OSError):
        return environment_of(process).get("PREFECT__FLOW_RUN_ID")
    return None


def _end_of(text: str) -> str:
    lines = [in_one_line(line) for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-3:])
