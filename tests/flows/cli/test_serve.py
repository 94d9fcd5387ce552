"""`countdown-train serve` as a person runs it: started, used, stopped, started again, broken."""

from __future__ import annotations

import os
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import httpx
import psutil
import pytest

from tests.flows.test_run import PROGRAM, Place
from tests.support.harness import LIMIT_S, FlowRun, Prefect
from tests.support.waiting import wait_for

_STOPPED_WITHIN_S = 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Served(Prefect):
    """A place for `serve`: a port and a PREFECT_HOME of its own, and a folder of runs."""

    def __init__(self, folder: Path, tiny_overrides: list[str]) -> None:
        super().__init__(folder, {"PREFECT_WORKER_QUERY_SECONDS": "2", "TMPDIR": str(folder)})
        del self.environment["PREFECT_API_URL"]
        self.environment["PREFECT_SERVER_API_PORT"] = str(self.port)
        (folder / "prefect").mkdir()
        self.home = folder / "prefect"
        self.place = Place(folder, tiny_overrides)

    def serve(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PROGRAM, "serve"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def is_ready(self, since: datetime) -> bool:
        """Says whether a worker has polled for runs of the deployments."""
        if not self.is_up():
            return False
        try:
            workers = self.post("/work_pools/countdown/workers/filter", {})
        except httpx.HTTPStatusError:
            return False
        beats = [datetime.fromisoformat(worker["last_heartbeat_time"]) for worker in workers]
        return any(beat > since for beat in beats)

    def ends(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Waits for the end of `serve`, at which nothing is left of all that it started."""
        out, err = process.communicate(timeout=_STOPPED_WITHIN_S)
        assert self.place.processes() == []
        return process.returncode, out, err


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_overrides: list[str]) -> Served:
    return Served(tmp_path_factory.mktemp("served"), [*tiny_overrides, "trainer.total_steps=50"])


def ready(served: Served) -> subprocess.Popen[str]:
    started = datetime.now(UTC)
    process = served.serve()

    def is_ready() -> bool:
        assert process.poll() is None, process.communicate()
        return served.is_ready(started)

    wait_for(is_ready)
    return process


def test_it_serves_and_ctrl_c_stops_all_of_it(served: Served) -> None:
    process = ready(served)
    second = served.serve()
    _, said = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 2
    (line,) = said.splitlines()
    assert line.startswith(f"countdown-train: port {served.port} of 127.0.0.1 is not free")
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = served.ends(process)
    assert (code, err) == (0, "")
    assert f"server       http://127.0.0.1:{served.port}\n" in out


def test_a_second_start_finds_all_as_it_was_and_a_death_ends_it_with_its_runs(
    served: Served,
) -> None:
    process = ready(served)
    automations = served.post("/automations/filter", {})
    assert sorted(each["name"] for each in automations) == [
        "countdown-train lost",
        "countdown-train refused",
    ]
    assert len(served.post("/deployments/filter", {})) == 4

    FlowRun(served, "countdown-train", served.place.arguments[1:])
    wait_for(lambda: list(served.place.root.glob("runs/*/log.txt")))
    (worker,) = (
        child for child in psutil.Process(process.pid).children() if "worker" in child.cmdline()
    )
    worker.kill()
    code, _, err = served.ends(process)
    assert code == 1
    assert err.startswith("countdown-train: the worker ended (killed by SIGKILL), see ")
    assert served.place.record()["status"] == "interrupted"
