"""SIGKILL of Prefect's server under a running training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployments.test_faults import ON_DEMAND, Place, short_run
from tests.support.chaos import Ledger
from tests.support.harness import Prefect, stop
from tests.support.waiting import wait_for

ARTIFACTS = {"training", "learning-curve", "checkpoints", "evaluation", "champion", "report"}
ROOT = "server-killed"
TRUE_WITHIN_S = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def place(prefect: Prefect, undisturbed: Path, tiny_overrides: list[str]) -> Iterator[Place]:
    """A server with automations and a worker."""
    place = Place(prefect, undisturbed, short_run(tiny_overrides))
    try:
        yield place
    finally:
        stop(place.worker)


@pytest.mark.chaos
def test_training_goes_on_and_the_server_that_comes_back_hears_all_of_it(
    place: Place, survived: Ledger
) -> None:
    run = place.start(ON_DEMAND, ROOT)
    place.wait_for_steps(ROOT, 3)
    place.prefect.kill_server()
    place.wait_for_steps(ROOT, 2)
    place.prefect.start_server()
    wait_for(lambda: not run.processes())
    wait_for(lambda: run.is_in("Completed"), limit_s=TRUE_WITHIN_S)
    assert place.resumed_at(ROOT) == []  # nothing was done again
    place.compare(ROOT)
    artifacts = run.artifacts()
    assert artifacts.keys() >= ARTIFACTS
    assert artifacts["training"] == 100
    # Those of the time without a server come in late.
    wait_for(lambda: {state for _, state in run.tasks()} == {"Completed"}, limit_s=TRUE_WITHIN_S)
    survived("SIGKILL", "Prefect server", steps_lost=0)
