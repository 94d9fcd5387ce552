"""SIGKILL of Prefect's server under a running training, on either database that it may have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deployments.test_faults import ON_DEMAND, Place, short_run
from tests.support.chaos import Ledger
from tests.support.harness import Prefect, stop
from tests.support.postgresql import postgresql
from tests.support.waiting import wait_for

ARTIFACTS = {"training", "learning-curve", "checkpoints", "evaluation", "champion", "report"}
TRUE_WITHIN_S = 120

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def place(
    request: pytest.FixtureRequest, database: str, undisturbed: Path, tiny_overrides: list[str]
) -> Iterator[Place]:
    """A server with automations and a worker."""
    server = request.getfixturevalue("prefect" if database == "sqlite" else "on_postgresql")
    place = Place(server, undisturbed, short_run(tiny_overrides))
    try:
        yield place
    finally:
        stop(place.worker)


@pytest.fixture(scope="module")
def on_postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    with postgresql() as url:
        settings = {"PREFECT_API_DATABASE_CONNECTION_URL": url, "PREFECT_WORKER_QUERY_SECONDS": "2"}
        prefect = Prefect(tmp_path_factory.mktemp("postgresql"), settings)
        prefect.start_server()
        try:
            prefect.deploy()
            yield prefect
        finally:
            prefect.stop_server()


@pytest.mark.chaos
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_training_goes_on_and_the_server_that_comes_back_hears_all_of_it(
    place: Place, database: str, survived: Ledger
) -> None:
    run = place.start(ON_DEMAND, database)
    place.wait_for_steps(database, 3)
    place.prefect.kill_server()
    place.wait_for_steps(database, 2)
    place.prefect.start_server()
    wait_for(lambda: not run.processes())
    wait_for(lambda: run.is_in("Completed"), limit_s=TRUE_WITHIN_S)
    assert place.resumed_at(database) == []  # nothing was done again
    place.compare(database)
    artifacts = run.artifacts()
    assert artifacts.keys() >= ARTIFACTS
    assert artifacts["training"] == 100
    # Those of the time without a server come in late.
    wait_for(lambda: {state for _, state in run.tasks()} == {"Completed"}, limit_s=TRUE_WITHIN_S)
    survived("SIGKILL", f"Prefect server on {database}", steps_lost=0)
