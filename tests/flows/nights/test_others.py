from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import DeploymentResponse
from prefect.states import Cancelled, Completed, Crashed, Scheduled

from flows.nights.others import unseen

LIMIT = "Deployment concurrency limit reached."
DAYS = [datetime(2026, 11, day, 1, tzinfo=UTC) for day in (23, 24, 25)]
NOON = timedelta(hours=11)
LAST_LOOK, NOW = DAYS[0] - NOON, DAYS[-1] + NOON


def deployment(**schedule: Any) -> DeploymentResponse:
    there = DeploymentResponse(
        id=uuid4(), name="countdown-train-nightly", flow_id=uuid4(), labels={}, paused=False
    )
    made = {
        "schedule": {"cron": "0 1 * * *", "timezone": "UTC"},
        "active": True,
        "updated": LAST_LOOK - NOON,
        **schedule,
    }
    return there.model_copy(update={"schedules": [_schedule(made)]})


def _schedule(made: dict[str, Any]) -> Any:
    from prefect.client.schemas.objects import DeploymentSchedule

    return DeploymentSchedule.model_validate(made)


def night(due: datetime, state: State[Any], *, ran: bool = True) -> FlowRun:
    return FlowRun(
        name=f"night-{due.day}",
        flow_id=uuid4(),
        expected_start_time=due,
        start_time=due,  # which a final state gives even to a run that never started
        run_count=int(ran),
        state=state,
    )


def test_nights_that_ran_or_were_refused_are_not_missing():
    runs = [
        night(DAYS[0], Completed()),
        night(DAYS[1], Cancelled(name="Refused", message="Refused: ..."), ran=False),
        night(DAYS[2], Crashed(message="Flow run process exited with status code -9")),
    ]
    assert unseen(deployment(), runs, LAST_LOOK, NOW) is None


@pytest.mark.parametrize(
    "never",
    [
        None,  # the server was not there to make it
        Scheduled(name="Late"),
        Cancelled(message=LIMIT),
        Cancelled(name="Missed", message="Missed: no server or worker was there."),
    ],
)
def test_a_night_that_never_started_is_named(never):
    runs = [night(DAYS[0], Completed()), night(DAYS[2], Completed())]
    if never is not None:
        runs.append(night(DAYS[1], never, ran=False))
    assert unseen(deployment(), runs, LAST_LOOK, NOW) == (
        "the night of 2026-11-24 01:00 did not start in time: no server or no worker was there"
    )


def test_the_night_that_asks_is_there_and_each_look_starts_where_the_last_ended():
    own = night(DAYS[2], Completed(), ran=False)
    said = unseen(deployment(), [], LAST_LOOK, NOW, own)
    assert said.startswith("the nights of 2026-11-23 01:00, 2026-11-24 01:00 did not start")
    assert unseen(deployment(), [], DAYS[1], NOW, own) is None


def test_without_a_schedule_no_night_is_missing():
    for there in (
        deployment(active=False),
        deployment(updated=NOW),  # the schedule of before is not known
        deployment().model_copy(update={"paused": True}),
    ):
        assert unseen(there, [], LAST_LOOK, NOW) is None


def test_a_night_whose_machine_died_is_told_of_once():
    lost: State[Any] = Crashed(message="No heartbeat for 90 s, the worker or its machine is gone.")
    lost.timestamp = DAYS[1] + timedelta(hours=2)
    runs = [night(due, Completed()) for due in (DAYS[0], DAYS[2])] + [night(DAYS[1], lost)]
    assert unseen(deployment(), runs, LAST_LOOK, NOW) == (
        "night-24 ended without a word: its machine or its worker was gone"
    )
    assert unseen(deployment(), runs, DAYS[1] + timedelta(hours=3), NOW) is None
