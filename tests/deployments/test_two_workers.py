"""Two workers on one pool, their server on PostgreSQL: each run is done by one of them, once."""

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from rl_core.runs.run_folder import RunFolder
from tests.deployments.test_faults import ON_DEMAND
from tests.support.harness import WORKER, FlowRun, Prefect, stop
from tests.support.postgresql import postgresql
from tests.support.runs import short
from tests.support.waiting import wait_for

NUM_STEPS = 4

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    """A server on PostgreSQL."""
    with postgresql() as url:
        settings = {"PREFECT_API_DATABASE_CONNECTION_URL": url, "PREFECT_WORKER_QUERY_SECONDS": "2"}
        with Prefect(tmp_path_factory.mktemp("two-workers"), settings).up() as prefect:
            prefect.deploy()
            prefect.disable_automations()
            prefect.pause_nights()
            yield prefect


Workers = dict[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def workers(prefect: Prefect) -> Iterator[Workers]:
    workers = {name: prefect.start(*WORKER, "--name", name) for name in ("one", "other")}
    try:
        wait_for(lambda: _online(prefect) == set(workers))
        yield workers
    finally:
        for worker in workers.values():
            stop(worker)


def _online(prefect: Prefect) -> set[str]:
    found = prefect.post("/work_pools/countdown/workers/filter", {})
    return {worker["name"] for worker in found if worker["status"] == "ONLINE"}


def _worker_of(run: FlowRun, workers: Workers) -> str:
    """Returns the name of the worker that the run's process descends from."""
    above = {process.pid for process in run.main_process().parents()}
    (name,) = [name for name, worker in workers.items() if worker.pid in above]
    return name


def test_two_runs_go_to_one_worker_each(prefect, workers, tmp_path, tiny_overrides):
    overrides = [*short(tiny_overrides, total_steps=NUM_STEPS), f"storage.root={tmp_path}"]
    # All wait before the first starts; the third for a worker that is free.
    first, second = (
        FlowRun(prefect, ON_DEMAND, [*overrides, f"run_id={name}"]) for name in ("first", "second")
    )
    wait_for(lambda: first.processes() and second.processes())
    by = {_worker_of(first, workers): first, _worker_of(second, workers): second}
    assert by.keys() == workers.keys()
    third = FlowRun(prefect, ON_DEMAND, [*overrides, "run_id=third"])
    os.kill(workers["one"].pid, signal.SIGKILL)
    workers["one"].wait()
    wait_for(third.processes)
    assert _worker_of(third, {"other": workers["other"]}) == "other"
    assert not by["other"].processes()  # one at a time
    for run in (first, second, third):
        run.ends()
        # While it waits for a worker it may be Late, and Submitting is that worker's Pending.
        names = [name for name, _ in run.states() if name not in ("Late", "Submitting")]
        assert names == ["Scheduled", "Pending", "Running", "Completed"], run.logs()
        assert run.read()["run_count"] == 1
    folders = sorted((tmp_path / "runs").iterdir())
    assert [folder.name for folder in folders] == ["first", "second", "third"]
    for folder in folders:
        steps = [row["step"] for row in RunFolder(folder).metrics.read()]
        assert steps == list(range(NUM_STEPS + 1))
        assert RunFolder(folder).read().status == "finished"
