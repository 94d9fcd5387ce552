"""`serve status`: whether `serve` is up, when the next night is, and which run is running."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

from httpx import HTTPError
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.context import refresh_global_settings_context
from prefect.exceptions import PrefectException
from prefect.settings import get_current_settings

from flows.cli.terminal import say
from flows.errors import RunFailedError
from flows.missed_nights import OF_NIGHTS
from flows.prefect_patches import login
from flows.settings.night import read_night, why_off
from rl_core.config.operations import StorageConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import open_own
from rl_core.system.plain_files import parse_json
from rl_core.system.words import duration
from tasks.hours import last_step_of, left_of
from tasks.preflight_checks.surroundings import why_no_prefect

_ROOT: Final = Path(__file__).parents[2]
_MOST_BYTES: Final = 4_096


def _file(home: Path) -> Path:
    return home / "serve" / "serving.json"


@contextmanager
def shown_as_up(home: Path, url: str) -> Iterator[None]:
    """Says to `serve status` that this process serves; the kernel takes it back at its end."""
    with open_own(_file(home), "r+") as file:
        with suppress(BlockingIOError):  # another `serve`, which uses the same server
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            file.truncate(0)
            file.write(json.dumps({"url": url, "since": now}).encode())
        yield


def serving(home: Path) -> dict[str, str] | None:
    """Returns `url` and `since` of the `serve` that is up; None if none is."""
    if not _file(home).exists():
        return None
    with open_own(_file(home), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return cast("dict[str, str]", parse_json(file.read(_MOST_BYTES), _file(home)))
    return None


def status() -> None:
    """Says whether `serve` is up, and what it does; exit code 1 if it is not."""
    settings = get_current_settings()
    there = serving(settings.home)
    if there is None:
        url = settings.api.url
        other = ""
        if url is not None and why_no_prefect(url) is None:
            other = f" (a server that was started by other means answers at {url})"
        raise RunFailedError(f"serve is not up{other}: countdown-train serve starts it")
    url = there["url"]
    if (why := why_no_prefect(url)) is not None:
        raise RunFailedError(
            f"serve is up since {_time(there['since'])}, but its server does not answer at {url} "
            f"({why}): look into {settings.home / 'serve'}"
        )
    os.environ["PREFECT_API_URL"] = url
    if (secret := login.login_for(url, settings)) is not None:
        os.environ.setdefault(login.AUTH_STRING, secret)
    refresh_global_settings_context()
    say(f"serve   up since {_time(there['since'])}: {url.removesuffix('/api')}")
    try:
        with get_client(sync_client=True) as client:
            say(f"night   {_next_night(client)}")
            lines = [_in_words(run) for run in _runs(client, StateType.RUNNING)]
    except (HTTPError, PrefectException) as error:
        raise RunFailedError(f"the server at {url} does not say more: {error}") from None
    for line in lines or ["none is running"]:
        say(f"run     {line}")


def _next_night(client: SyncPrefectClient) -> str:
    night = read_night()
    if (off := why_off(night)) is not None:
        return f"none: {off}"
    due = [run.expected_start_time for run in _runs(client, StateType.SCHEDULED, OF_NIGHTS)]
    when = _time(due[0].isoformat()) if due and due[0] else f"{night.at} ({night.timezone})"
    return f"next at {when}, preset={night.preset}"


def _runs(
    client: SyncPrefectClient, state: StateType, deployments: DeploymentFilter | None = None
) -> list[FlowRun]:
    """Returns flow runs in a state, the earliest first."""
    return client.read_flow_runs(
        deployment_filter=deployments,
        flow_run_filter=FlowRunFilter.model_validate({"state": {"type": {"any_": [state]}}}),
        sort=FlowRunSort.EXPECTED_START_TIME_ASC,
        limit=20,
    )


def _in_words(flow_run: FlowRun) -> str:
    began = f", since {_time(flow_run.start_time.isoformat())}" if flow_run.start_time else ""
    for run in RunFolder.all_under(_ROOT / StorageConfig().root):
        with suppress(OSError, ValueError):  # no run
            if run.read().flow_run_id == str(flow_run.id):
                last = last_step_of(run)
                left = left_of(run)
                step = f"step {run.metrics.last_step()}{f' of {last}' if last else ''}"
                return f"{run.run_id}, {step}{f', {left}' if left else ''}{began}"
    return f"{flow_run.name}{began}"


def _time(text: str) -> str:
    """Returns a time on this machine's clock, and how far away it is."""
    time = datetime.fromisoformat(text).astimezone()
    seconds = (time - datetime.now(UTC)).total_seconds()
    away = f"in {duration(seconds)}" if seconds > 0 else f"{duration(-seconds)} ago"
    return f"{time:%Y-%m-%d %H:%M} ({away})"
