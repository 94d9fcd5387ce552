"""Preflight's look at what others left: processes of a killed run, Prefect's server and disk.

A run without resources.ray_address starts a Ray of its own on free ports: no other session and no
port that is taken can disturb that. What a killed run leaves can still hold memory.
"""

from __future__ import annotations

import shutil
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

from rl_core.system.network import PROBE_TIMEOUT_S, why_unreachable
from rl_core.system.words import GIB
from tasks.preflight_checks.finding import Finding, fatal, warning

_OUR_FOLDERS: Final = "/rl-"
"""Ray's daemons name their session's folder: ours start like this."""
_RAY_DAEMONS: Final = ("gcs_server", "raylet")
_OUR_WORKERS: Final = ("ray::LearnerActor", "ray::RolloutActor")
"""How Ray titles our actors' processes."""
_PREFECT_BYTES: Final = 200 * 2**20
"""Below so much free disk Prefect's database is soon without room."""
_NO_API: Final = "unset PREFECT_API_URL (prefect config unset PREFECT_API_URL) for a private one"


def leftover_findings() -> Iterator[Finding]:
    """Yields what was found, and nothing about what is as it should be."""
    yield from _left_processes()
    if FlowRunContext.get() is None:  # else the server has just answered
        yield from _prefect_server()
    yield from _prefect_disk()


def _left_processes() -> Iterator[Finding]:
    """Processes of a Ray of ours whose driver is gone: they hold memory, perhaps of a card."""
    left = left_processes()
    if left:
        held = 0
        for process in left:
            with suppress(psutil.Error):
                held += process.memory_info().rss
        pids = " ".join(str(process.pid) for process in left)
        yield warning(
            "leftovers",
            f"{len(left)} processes of a run that was killed hold {held / GIB:.1f} GiB",
            f"kill {pids}",
        )


def left_processes() -> list[psutil.Process]:
    """Returns the daemons and actors of Rays of ours that lost their parent, and all below them."""
    orphans = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            parent = process.parent() if _is_ours(process) else process
            if parent is None or (parent != process and not _may_be_parent(parent)):
                orphans += [process, *process.children(recursive=True)]
    return list(dict.fromkeys(orphans))


def _is_ours(process: psutil.Process) -> bool:
    words = process.cmdline() or [""]
    if words[0].startswith(_OUR_WORKERS):
        return True
    return process.name() in _RAY_DAEMONS and any(_OUR_FOLDERS in word for word in words)


def _may_be_parent(process: psutil.Process) -> bool:
    """A driver is a Python program, an actor's parent a raylet; what adopts orphans is neither."""
    names = [process.name(), *(Path(word).name for word in process.cmdline()[:1])]
    return any("python" in name or name in _RAY_DAEMONS for name in names)


def _prefect_server() -> Iterator[Finding]:
    url = get_current_settings().api.url
    if url is None:
        return
    why = why_unreachable(url)
    if why is not None:
        message, remedy = f"does not answer ({why})", "`prefect server start`"
    elif (why := _why_no_prefect(url)) is not None:
        message = f"is no Prefect server ({why}): another program may have its port"
        remedy = "`prefect server start --port N`, and PREFECT_API_URL=http://127.0.0.1:N/api"
    elif _refuses_login(url):
        message = "refuses the login"
        remedy = "PREFECT_API_AUTH_STRING=name:password as the server was started with"
    else:
        return
    yield fatal("prefect", f"PREFECT_API_URL={url} {message}", f"{remedy}, or {_NO_API}")


def _why_no_prefect(url: str) -> str | None:
    try:
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=PROBE_TIMEOUT_S)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    return None if answer.status_code == httpx.codes.OK else f"HTTP {answer.status_code}"


def _refuses_login(url: str) -> bool:
    try:
        with get_client(sync_client=True) as client:
            client.request("GET", "/admin/version")
    except PrefectHTTPStatusError as error:
        return error.response.status_code == httpx.codes.UNAUTHORIZED
    except (httpx.HTTPError, PrefectException):
        return False  # what else is wrong, a run will say
    return False


def _prefect_disk() -> Iterator[Finding]:
    home = get_current_settings().home
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
    except OSError as error:
        yield fatal(
            "prefect",
            f"Prefect's folder {home} cannot be written ({error.strerror})",
            "set PREFECT_HOME to a folder of yours",
        )
        return
    folder = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    if free < _PREFECT_BYTES:
        yield warning(
            "prefect",
            f"Prefect keeps its records in {home}, where {free / 2**20:.0f} MiB are free: "
            "a run whose states cannot be recorded fails",
            "free some, or set PREFECT_HOME to a folder of another disk",
        )
