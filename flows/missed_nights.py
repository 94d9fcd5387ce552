"""Nights that were due and did not run: named by the next night, and sent by `serve`.

One reason is a run that counts as running though its process is gone: `serve` closes these.
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from httpx import HTTPError
from prefect import get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException
from prefect.states import Crashed
from prefect.types._datetime import now

from flows.settings.night import DEPLOYMENT, due_times

OF_NIGHTS: Final = DeploymentFilter.model_validate(
    {"name": {"any_": [DEPLOYMENT.partition("/")[2]]}}
)
_MOST: Final = 50  # nights that are looked back at


def missed_before(flow_run: FlowRun | None) -> str | None:
    """Returns in a sentence which nights were due since the last one that ran; None: none."""
    if flow_run is None or flow_run.deployment_id is None or flow_run.expected_start_time is None:
        return None
    due = flow_run.expected_start_time
    try:
        before = [run for run in _nights_until(due) if run.id != flow_run.id]
        with get_client(sync_client=True) as client:
            schedules = client.read_deployment(flow_run.deployment_id).schedules
    except (HTTPError, PrefectException):  # a server that is away keeps no night from its end
        return None
    refused = list(takewhile(lambda run: not run.run_count, before))
    missed = {_minute(_due(run)): why_not_run(run) for run in refused}
    if last := before[len(refused) :]:
        crons = (each.schedule for each in schedules if isinstance(each.schedule, CronSchedule))
        for cron in crons:
            start = due.astimezone(ZoneInfo(cron.timezone or "UTC"))
            times = islice(due_times(cron.cron, start, backwards=True), _MOST)
            for time in takewhile(lambda time: time > _due(last[0]), times):
                missed.setdefault(_minute(time), "no server was running, or no schedule was on")
    if not missed:
        return None
    newest = max(missed)
    nights = (
        f"{len(missed)} nights before it did not run, the last"
        if len(missed) > 1
        else "the night before it did not run,"
    )
    return f"{nights} due {newest}: {missed[newest]}"


def refused_since(start: datetime) -> list[FlowRun]:
    """Returns the nights that were due since then and were cancelled before they began."""
    with suppress(HTTPError, PrefectException):
        return [
            run
            for run in _nights_until(now("UTC"))
            if run.state_type is StateType.CANCELLED and not run.run_count and _due(run) >= start
        ]
    return []


def close_lost(alive: Collection[str | None]) -> list[str]:
    """Sets the deployments' runs to Crashed whose processes are gone, and returns their names.

    A server that was away for minutes after the last heartbeat of a run waits for none (it drops
    the automation's clock of that run), and while that counts as running each night is cancelled.
    """
    states = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]
    under_way = FlowRunFilter.model_validate(
        {"deployment_id": {"is_null_": False}, "state": {"type": {"any_": states}}}
    )
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(flow_run_filter=under_way)
        lost = [run for run in runs if str(run.id) not in alive]
        for run in lost:
            message = "Its process was gone when `serve` started."
            client.set_flow_run_state(run.id, Crashed(message=message), force=True)
    return [run.name for run in lost]


def why_not_run(run: FlowRun) -> str:
    """Returns what the server says of a night that did not begin."""
    return (run.state.message if run.state else None) or run.state_name or "no reason was given"


def _nights_until(due: datetime) -> list[FlowRun]:
    """Returns the deployment's newest flow runs that were due by then, the newest first."""
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(
            deployment_filter=OF_NIGHTS,
            flow_run_filter=FlowRunFilter.model_validate({"expected_start_time": {"before_": due}}),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=_MOST,
        )


def _due(run: FlowRun) -> datetime:
    assert run.expected_start_time is not None
    return run.expected_start_time


def _minute(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M} UTC"
