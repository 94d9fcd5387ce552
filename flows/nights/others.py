"""The other nights of a deployment: refused because one is not over, never started, or lost.

Prefect cancels a flow run that would overlap, and says `Deployment concurrency limit reached.`. An
automation cannot be relied on to say more: the server holds an event back until it has seen the
event of the state before, if that state is younger than five minutes, and the scheduler writes its
states without events. So the night that is in the way refuses the other one itself.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from httpx import HTTPError
from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException
from prefect.server.schemas.schedules import CronSchedule as Dates
from prefect.states import Cancelled
from prefect.variables import Variable

from flows.nights.messages import Night, message
from flows.nights.settings import NightSettings, deployed, differences, is_off
from flows.runs.state import look_on, own_flow_run
from tasks.prefect_ui.notify import Listeners, notify

_LIMIT_REACHED: Final = "Deployment concurrency limit reached."
_NO_HEARTBEAT: Final = "No heartbeat"
"""How the message of `deployments/automations.yaml` begins."""
_LAST_LOOK_S: Final = 5.0
_TIME_TO_START: Final = timedelta(minutes=2)
"""Less late, a night is not missed: server and worker need time, and other nights may wait."""
_RUNS_READ: Final = 100
_FILE: Final = "deployments/night.yaml"
_SHOWN: Final = 3
_TOLD_UNTIL: Final = "countdown_train_nights_told_until"
_logger = logging.getLogger(__name__)

TellOfRefused = Callable[[FlowRun, str], None]


@contextmanager
def refusing_others(tell: TellOfRefused) -> Iterator[None]:
    """Gives each night that Prefect cancels within the block the state Refused, with its reason.

    `tell` is called with both.
    """
    own, is_over = own_flow_run(), threading.Event()
    if own is None or own.deployment_id is None:
        yield
        return

    def look() -> None:
        with get_client(sync_client=True) as client:
            refuse_others(client, client.read_flow_run(own.id), tell)

    thread = look_on(look, is_over)
    try:
        yield
    finally:
        is_over.set()
        # Stopped by a signal, it has seconds left, and the server may be away.
        if isinstance(sys.exc_info()[1], Exception | None):
            thread.join(_LAST_LOOK_S)
            with suppress(HTTPError, PrefectException):
                look()


def refuse_others(client: SyncPrefectClient, own: FlowRun, tell: TellOfRefused) -> None:
    """Names the nights that Prefect cancelled because this one is not over.

    Those that were due before it began are nights that nobody started, see `missed_nights`.
    """
    assert own.deployment_id is not None
    began = own.start_time or datetime.now(UTC)
    missed_before = began - _TIME_TO_START
    for run in _runs_of(client, own.deployment_id):
        if run.state is None or run.state.message != _LIMIT_REACHED or run.id == own.id:
            continue
        is_missed = run.auto_scheduled and (run.expected_start_time or began) < missed_before
        why = (
            "Missed: no server or worker was there when it was due."
            if is_missed
            else f"Refused: {own.name}, running since {began:%Y-%m-%d %H:%M} UTC, is not over. "
            "collision_strategy ENQUEUE in deployments/prefect.yaml would let this one wait for it."
        )
        state: State[Any] = Cancelled(name="Missed" if is_missed else "Refused", message=why)
        client.set_flow_run_state(run.id, state, force=True)
        if not is_missed:
            tell(run, why.removeprefix("Refused: "))


def missed_nights(client: SyncPrefectClient, own: FlowRun | None = None) -> str | None:
    """Returns in a sentence which nights did not run, or ended unseen; None if all is well.

    Each is named once: the server keeps until when it was told.
    """
    there = deployed(client)
    if there is None or (own is not None and own.deployment_id != there.id):
        return None
    told, until = Variable.get(_TOLD_UNTIL), datetime.now(UTC) - _TIME_TO_START
    Variable.set(_TOLD_UNTIL, until.isoformat(), overwrite=True)
    try:
        since = datetime.fromisoformat(str(told))
    except ValueError:  # nothing was told yet
        return None
    return unseen(there, _runs_of(client, there.id), since, until, own)


def before_the_deploy(night: NightSettings) -> list[str]:
    """Returns lines on nights that did not run, told to the listeners, and on what will change."""
    with get_client(sync_client=True) as client:
        lines = differences(deployed(client), night)
        missed = missed_nights(client)
    if missed is not None:
        lines.append(missed)
        if "missed" in night.events:
            listeners = Listeners(night.webhook, night.command)
            notify(listeners, message("missed", Night(), missed), _logger)
    return lines


def next_night(night: NightSettings) -> str:
    """Returns when the next night starts, or why none does, and how to change that."""
    with get_client(sync_client=True) as client:
        there = deployed(client)
    if night.at is None:
        return f"none, as {_FILE} says (at: null)"
    if is_off(there):
        return "none: its schedule is switched off in the UI (Deployments, countdown-train-nightly)"
    dates = Dates(cron=night.cron, timezone=night.timezone).get_dates(n=1, start=datetime.now(UTC))
    due = asyncio.run(dates)[0].astimezone(ZoneInfo(night.timezone))
    return (
        f"trains with preset={night.preset} next at {due:%Y-%m-%d %H:%M} ({night.timezone}); "
        f"`at: null` in {_FILE} switches it off (see night.example.yaml)"
    )


def unseen(
    there: DeploymentResponse,
    runs: Sequence[FlowRun],
    since: datetime,
    until: datetime,
    own: FlowRun | None = None,
) -> str | None:
    """Returns in a sentence which nights between two looks did not start, or ended unseen.

    `own`: the night that asks, which did start.
    """
    known = {run.expected_start_time for run in runs if not _never_started(run, there)}
    if own is not None:
        known.add(own.expected_start_time)
    missed = [due for due in _due_times(there, since, until) if due not in known]
    lost = [
        run.name
        for run in runs
        if (state := run.state) is not None
        and state.type is StateType.CRASHED
        and state.timestamp > since
        and str(state.message).startswith(_NO_HEARTBEAT)
    ]
    said = []
    if missed:
        times = ", ".join(f"{due:%Y-%m-%d %H:%M}" for due in missed[-_SHOWN:])
        more = f" and {len(missed) - _SHOWN} before" if len(missed) > _SHOWN else ""
        nights = f"the night{'s' if missed[1:] else ''} of {times}{more}"
        said.append(f"{nights} did not start in time: no server or no worker was there")
    if lost:
        names = ", ".join(lost[:_SHOWN])
        said.append(f"{names} ended without a word: its machine or its worker was gone")
    return "; ".join(said) or None


def _never_started(run: FlowRun, there: DeploymentResponse) -> bool:
    state = run.state
    if run.run_count or state is None:  # a state of its own gives a start_time even to a missed one
        return False
    if state.is_scheduled():  # with ENQUEUE it waits for another night
        options = there.concurrency_options
        return options is None or options.collision_strategy.value != "ENQUEUE"
    return state.name == "Missed" or state.message == _LIMIT_REACHED


def _due_times(there: DeploymentResponse, since: datetime, until: datetime) -> list[datetime]:
    """Returns when nights were due between two times, by schedules as they are now."""
    if there.paused:
        return []
    times: list[datetime] = []
    for one in there.schedules:
        if not one.active or not isinstance(one.schedule, CronSchedule):
            continue
        start = max(since, one.updated or since)
        dates = Dates.model_validate(one.schedule.model_dump())
        zone = ZoneInfo(one.schedule.timezone or "UTC")
        found = asyncio.run(dates.get_dates(n=_RUNS_READ, start=start, end=until))
        times += [due.astimezone(zone) for due in found if start < due < until]
    return sorted(times)


def _runs_of(client: SyncPrefectClient, deployment_id: Any) -> list[FlowRun]:
    """Returns the latest flow runs of a deployment that are due."""
    due = {"expected_start_time": {"before_": datetime.now(UTC)}}
    return client.read_flow_runs(
        deployment_filter=DeploymentFilter.model_validate({"id": {"any_": [deployment_id]}}),
        flow_run_filter=FlowRunFilter.model_validate(due),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_RUNS_READ,
    )
