"""Preflight's check of what is around the run: a Ray to join, Prefect, leftovers of killed runs."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx
import psutil
from prefect import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException, PrefectHTTPStatusError
from prefect.settings import get_current_settings

from rl_core.config.run import RunConfig
from rl_core.system.network import why_unreachable
from rl_core.system.process_env import environment_of_child
from rl_core.system.process_group import has_living_owner, short_temp_root
from rl_core.system.words import GIB, as_path, disk_size
from rl_core.workers.ray_auth import RAY_CLUSTER_FILE, address_of_auto, mode_for
from tasks.preflight_checks import Finding, fatal, ok, refused, warning

_OUR_FOLDERS: Final = "/rl-"  # Ray's daemons name their session's folder: ours start like this
_RAY_DAEMONS: Final = ("gcs_server", "raylet")
_OUR_WORKERS: Final = ("ray::LearnerActor", "ray::RolloutActor")  # Ray's titles of our actors
_PREFECT_BYTES: Final = 200 * 2**20  # with less free disk, Prefect's database soon has no room
_TEMP_BYTES: Final = 50 * 2**20  # Ray's logs of a start, with room to spare
_NO_API: Final = "unset PREFECT_API_URL (prefect config unset PREFECT_API_URL) for a private server"
_ASK_MACHINES: Final = "from rl_core.workers.nodes import main; main()"
_ANSWERS_WITHIN_S: Final = 5.0  # for a server that is busy
_WITHIN_S: Final = 60.0  # for the machines to answer


def leftover_findings() -> Iterator[Finding]:
    """Yields leftovers of killed runs, and what is wrong with Prefect's server or folder."""
    if left := left_processes():
        held = 0
        for process in left:
            with suppress(psutil.Error):
                held += process.memory_info().rss
        yield warning(
            "leftovers",
            f"{len(left)} processes of a run that was killed hold {held / GIB:.1f} GiB",
            f"kill {' '.join(str(one.pid) for one in left)}",
        )
    url = get_current_settings().api.url
    if FlowRunContext.get() is None and url is not None:  # else the server has just answered
        yield from _prefect_server(url)
    yield from _prefect_disk()
    yield from _temporary_folder()


def _temporary_folder() -> Iterator[Finding]:
    """Yields that Ray's sockets and logs have no room: it would start for a minute, and fail."""
    folder = short_temp_root()
    free = shutil.disk_usage(folder).free
    if free < _TEMP_BYTES or not os.access(folder, os.W_OK | os.X_OK):
        yield fatal(
            "temp",
            f"{folder}, where Ray keeps its sockets and logs, has {disk_size(free)} free",
            f"make room for {disk_size(_TEMP_BYTES)}, or set TMPDIR to a folder with a short path",
        )


def left_processes() -> list[psutil.Process]:
    """Returns daemons and actors of our Rays whose parent is gone, and all their descendants.

    Not those of a run that lives: if its trainer was killed, it ends them itself.
    """
    orphans = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # OSError: it belongs to another user
            words = process.cmdline() or [""]
            is_daemon = process.name() in _RAY_DAEMONS and any(_OUR_FOLDERS in w for w in words)
            is_ours = is_daemon or words[0].startswith(_OUR_WORKERS)
            if not is_ours or has_living_owner(process):
                continue
            # A live parent is Python (a driver) or a raylet; what adopts orphans is neither.
            parent = process.parent()
            names = [parent.name(), *(Path(w).name for w in parent.cmdline()[:1])] if parent else []
            if not any("python" in name or name in _RAY_DAEMONS for name in names):
                orphans += [process, *process.children(recursive=True)]
    return list(dict.fromkeys(orphans))


def _prefect_server(url: str) -> Iterator[Finding]:
    if (why := why_unreachable(url)) is not None:
        yield fatal(
            "prefect",
            f"PREFECT_API_URL={url} does not answer ({why})",
            f"`prefect server start`, or {_NO_API}",
        )
    elif (why := why_no_prefect(url)) is not None:
        yield fatal(
            "prefect",
            f"PREFECT_API_URL={url} is no Prefect server ({why}): another program may have its "
            "port",
            "`prefect server start --port N`, and PREFECT_API_URL=http://127.0.0.1:N/api, or "
            f"{_NO_API}",
        )
    elif refuses_login():
        yield fatal(
            "prefect",
            f"PREFECT_API_URL={url} refuses the login",
            f"PREFECT_API_AUTH_STRING=name:password as the server was started with, or {_NO_API}",
        )


def why_no_prefect(url: str) -> str | None:
    """Returns why no Prefect server answers at an API's URL; None if one does."""
    try:
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=_ANSWERS_WITHIN_S)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    return None if answer.status_code == httpx.codes.OK else f"HTTP {answer.status_code}"


def refuses_login() -> bool:
    """Returns whether the server in Prefect's settings refuses their login."""
    with suppress(httpx.HTTPError, PrefectException):  # a run reports other errors
        try:
            with get_client(sync_client=True) as client:
                client.request("GET", "/admin/version")
        except PrefectHTTPStatusError as error:
            return error.response.status_code == httpx.codes.UNAUTHORIZED
    return False


def why_not_written(folder: Path) -> str | None:
    """Returns why a folder, which is made if it is missing, cannot be written; None if it can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"x")
    except OSError as error:
        return error.strerror
    return None


def _prefect_disk() -> Iterator[Finding]:
    home = get_current_settings().home
    if (why := why_not_written(home)) is not None:
        yield fatal(
            "prefect",
            f"Prefect's folder {home} cannot be written ({why})",
            "set PREFECT_HOME to a folder of yours",
        )
    elif (free := shutil.disk_usage(home).free) < _PREFECT_BYTES:
        yield warning(
            "prefect",
            f"Prefect keeps its records in {home}, where {free / 2**20:.0f} MiB are free: "
            "a run whose states cannot be recorded fails",
            "free some, or set PREFECT_HOME to a folder of another disk",
        )


def cluster_findings(config: RunConfig) -> Iterator[Finding]:
    """Yields what is wrong with `resources.ray_address`."""
    setting = config.resources.ray_address
    variable = os.environ.get("RAY_ADDRESS")
    if setting is None:
        if variable:
            yield ok(
                "ray",
                f"RAY_ADDRESS={variable} is not used, the run starts a Ray of its own "
                f"(resources.ray_address={variable} would use it)",
            )
        return
    try:
        finding = _silence(setting, address_of_auto() if setting == "auto" else setting)
        if finding is None:
            mode_for(setting)
            finding = _machines(config, setting)
    except ValueError as error:
        finding = refused("ray", error)
    if finding is not None:
        yield finding


def _silence(setting: str, address: str | None) -> Finding | None:
    why: str | None = "ray start was not called here"
    if address is not None:
        is_asked = ":" in address and "//" not in address
        why = why_unreachable(f"ray://{address}") if is_asked else None
    if why is None:
        return None
    if setting != "auto":
        return fatal(
            "ray",
            f"resources.ray_address={setting} does not answer ({why})",
            "start the cluster, or leave it out for a Ray of the run's own",
        )
    meaning = f", which means {address}," if address else ""
    is_noted = address is not None and "RAY_ADDRESS" not in os.environ
    return fatal(
        "ray",
        f"resources.ray_address=auto{meaning} finds no Ray ({why})",
        "leave it out for a Ray of the run's own, or `ray start --head`"
        + (f" after removing {RAY_CLUSTER_FILE}" if is_noted else ""),
    )


def _machines(config: RunConfig, address: str) -> Finding | None:
    """Returns which machine has other software than this one, or does not see its folders."""
    model = as_path(config.model.path or "-")
    is_folder = (model / "config.json").is_file()
    folders = [config.storage.root, *([model] if is_folder else [])]
    paths = [str(folder.resolve()) for folder in folders]
    try:
        answer = subprocess.run(
            [sys.executable, "-P", "-c", _ASK_MACHINES, address, *paths],
            capture_output=True,
            text=True,
            timeout=_WITHIN_S,
            env=environment_of_child("ray"),
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return fatal(
            "ray",
            f"resources.ray_address={address} cannot be joined from here",
            "start the run on one of Ray's machines, or use `ray job submit`",
        )
    return refused("ray", answer.stdout.strip()) if answer.stdout else None
