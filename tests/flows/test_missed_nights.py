"""Nights that were due and did not run, as a server knows them."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from prefect import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.schedules import CronSchedule
from prefect.states import Cancelled, Completed, Pending, Running, Scheduled, State

from flows.missed_nights import close_lost, missed_before, refused_since
from flows.nightly import Night, message, nightly, tell_of_refused
from flows.settings.night import DEPLOYMENT
from tests.support.listeners import hook

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_harness")]
TODAY = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
REFUSED = Cancelled(message="Deployment concurrency limit reached.")


def night(deployment: UUID, due: datetime, state: State | None, webhook: str = "") -> FlowRun:
    """A flow run of the deployment that was due then, in a state; None: as it is made."""
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(
            deployment, state=Scheduled(scheduled_time=due), parameters={"webhook": webhook}
        )
        if state is not None:
            client.set_flow_run_state(run.id, state, force=True)
        return client.read_flow_run(run.id)


@pytest.fixture
def deployment() -> UUID:
    schedule = CronSchedule(cron="0 1 * * *", timezone="UTC")
    with get_client(sync_client=True) as client:
        return client.create_deployment(
            flow_id=client.create_flow(nightly),
            name=DEPLOYMENT.partition("/")[2],
            schedules=[DeploymentScheduleCreate(schedule=schedule, active=False)],
        )


def test_nights_that_did_not_run_are_named_and_refused_ones_are_told_of(deployment):
    def due(days_ago: int) -> datetime:
        return TODAY - timedelta(days=days_ago) + timedelta(hours=1)

    night(deployment, due(9), Running())
    assert missed_before(night(deployment, due(8), None)) is None
    night(deployment, due(8), Running())
    with hook() as server:
        night(deployment, due(7), REFUSED, server.url)
        after_one = night(deployment, due(6), None)
        assert missed_before(after_one) == (
            f"the night before it did not run, due {due(7):%Y-%m-%dT%H:%M} UTC: "
            "Deployment concurrency limit reached."
        )
        text = message("finished", Night(after_one), "not promoted")["text"]
        assert "\nwarning: the night before it did not run, due " in text
        # No flow run was made for four nights.
        assert missed_before(night(deployment, due(1), None)) == (
            f"6 nights before it did not run, the last due {due(2):%Y-%m-%dT%H:%M} UTC: no server "
            "was running, or no schedule was on"
        )
        (refused,) = refused_since(due(8))
        assert refused_since(due(6)) == []
        assert "refused: Deployment concurrency limit reached." in tell_of_refused(refused)
    (told,) = server.told
    assert (told["event"], told["due"]) == ("refused", due(7).isoformat(timespec="seconds"))


def test_only_runs_whose_process_is_gone_are_closed(deployment):
    def state_of(run: FlowRun) -> str | None:
        with get_client(sync_client=True) as client:
            return client.read_flow_run(run.id).state_name

    states = [Running(), Pending(), Running(), Completed(), None]
    runs = [night(deployment, TODAY, state) for state in states]
    with get_client(sync_client=True) as client:
        of_a_command = client.create_flow_run(nightly, state=Running())
    closed = close_lost({str(runs[2].id)})
    assert {run.name for run in runs[:2]} <= set(closed)  # nights of other tests are closed, too
    names = ["Crashed", "Crashed", "Running", "Completed", "Scheduled", "Running"]
    assert [state_of(run) for run in [*runs, of_a_command]] == names
