"""Buttons of Prefect's UI on one run in mid-training: each ends in a state that is true, in words.

In the order of a restless evening, at the end of which the server is killed.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_core.checkpoints.store import latest
from tests.deployments.test_faults import NUM_STEPS, ON_DEMAND, Place, disturbed_run
from tests.support.harness import FlowRun, Prefect, stop
from tests.support.waiting import wait_for

ARTIFACTS = {"training", "learning-curve", "checkpoints", "evaluation", "champion", "report"}
ROOT = "buttons"
TRUE_WITHIN_S = 120
_WORKERS_SAY_S = 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Evening(Place):
    """A place with one run, and what each button left."""

    flow_run: FlowRun
    left_at: int

    def is_left(self, state: str) -> None:
        """Waits for its processes to be gone; then it is in a state, and what it did is saved."""
        wait_for(lambda: not self.flow_run.processes(), limit_s=TRUE_WITHIN_S)
        time.sleep(_WORKERS_SAY_S)  # on the end of a process
        wait_for(lambda: self.flow_run.is_in(state), limit_s=TRUE_WITHIN_S)
        self.left_at = self.steps(ROOT)[-1]
        checkpoint = latest(self.run(ROOT).path)
        assert checkpoint is not None
        record = self.run(ROOT).read()
        assert (record.status, record.steps) == ("interrupted", self.left_at)
        assert checkpoint.step == self.left_at < NUM_STEPS

    def says(self, words: str) -> None:
        """Waits for a line of the run's log: they come to the server a moment later."""
        wait_for(lambda: any(words in line for line in self.flow_run.logs()), limit_s=TRUE_WITHIN_S)


@pytest.fixture(scope="module")
def evening(prefect: Prefect, undisturbed: Path, tiny_overrides: list[str]) -> Iterator[Evening]:
    evening = Evening(prefect, undisturbed, disturbed_run(tiny_overrides))
    evening.flow_run = evening.start(ON_DEMAND, ROOT)
    try:
        yield evening
    finally:
        stop(evening.worker)
        for process in evening.flow_run.processes():  # of a test that failed
            process.kill()


def test_a_run_that_the_server_takes_for_lost_is_running_again(evening):
    """As its automation does after a restart, before any heartbeat can have come."""
    evening.wait_for_steps(ROOT, 2)
    state = {"name": "Crashed", "message": "No heartbeat for 90 s."}
    assert evening.flow_run.set_state("CRASHED", force=True, **state) == "ACCEPT"
    wait_for(lambda: evening.flow_run.is_in("Running"), limit_s=TRUE_WITHIN_S)
    evening.says("so it was set to Running")


def test_suspend_saves_the_step_and_leaves(evening):
    assert evening.flow_run.suspend() == "ACCEPT"
    evening.is_left("Suspended")
    reason = evening.run(ROOT).read().reason
    assert reason is not None
    assert "Resume in the UI" in reason
    evening.says("Resume in the UI")


def test_resume_goes_on_where_it_was_left(evening):
    assert evening.flow_run.resume() == "ACCEPT"
    evening.wait_for_steps(ROOT, 2)
    assert evening.flow_run.is_in("Running")
    assert evening.resumed_at(ROOT)[-1] == evening.left_at


def test_cancel_saves_the_step_and_leaves(evening):
    """Within 30 s, or the worker would kill it: then there were no last step and no reason."""
    assert evening.flow_run.set_state("CANCELLING") == "ACCEPT"
    evening.is_left("Cancelled")
    record = evening.run(ROOT).read()
    resumes = f"Retry in the UI, or run_id={record.run_id}, continues from there"
    assert record.reason == f"cancelled; saved at step {evening.left_at}; {resumes}"


@pytest.mark.chaos
def test_cancelled_retried_and_without_a_server_it_equals_an_undisturbed_run(evening, survived):
    before = evening.flow_run.read()["run_count"]  # Prefect counts a way back from Crashed, too
    assert evening.flow_run.retry() == "ACCEPT"
    wait_for(lambda: evening.flow_run.read()["run_count"] > before)
    evening.wait_for_steps(ROOT, 2)
    evening.prefect.kill_server()
    evening.wait_for_steps(ROOT, 2)
    evening.prefect.start_server()  # which may take it for lost, for a moment
    wait_for(lambda: not evening.flow_run.processes())
    wait_for(
        lambda: evening.flow_run.is_in("Completed"),
        limit_s=TRUE_WITHIN_S,
        seen=lambda: evening.flow_run.read()["state"],
    )
    assert evening.resumed_at(ROOT)[-1] == evening.left_at
    evening.compare(ROOT)
    artifacts = evening.flow_run.artifacts()  # those of the time without a server come in late
    assert artifacts.keys() >= ARTIFACTS
    assert artifacts["training"]["data"] == 100
    survived("cancel", "UI", steps_lost=0)
    survived("SIGKILL", "Prefect server", steps_lost=0)
