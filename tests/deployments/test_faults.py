"""Runs under a worker that is killed, alone or with the flow run.

In the order of a bad night, on one server: what one test leaves running, the next finds.
"""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import alone_in
from tests.rl_core.test_trainer import comparable
from tests.support.harness import ROOT, WORKER, FlowRun, Prefect, edited, stop
from tests.support.programs import PROGRAM, cli, living
from tests.support.runs import short, steps_below
from tests.support.waiting import wait_for

NUM_STEPS = 60
SAVE_FREQ = 3
WITHIN_S = 45
"""Without a heartbeat a run is lost: Prefect knows none more often than every 30 s."""
MARK = "TEST_FAULTS_MARK"
NIGHTLY, ON_DEMAND = "countdown-train-nightly", "countdown-train"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Place:
    """A server with its automations, a worker, and folders of runs."""

    def __init__(self, prefect: Prefect, undisturbed: Path, overrides: list[str]) -> None:
        self.prefect = prefect
        self.overrides = overrides
        self.folder = folder = prefect.folder
        self._undisturbed = undisturbed
        self.chance = random.Random(5)
        within = {"within: 90": f"within: {WITHIN_S}"}
        file = edited(ROOT / "deployments" / "automations.yaml", folder, within)
        prefect.command("automation", "create", "--from-file", str(file))
        prefect.pause_nights()
        self.start_worker()

        self.night: FlowRun
        self.killed_at: int
        self.left_at: int

    def undisturbed(self) -> RunFolder:
        """Returns a run without a server, to compare with; it is trained once."""
        root = self._undisturbed
        with alone_in(root, wait=True):
            if not (root / "runs").exists():
                words = ["train", *self.overrides, f"storage.root={root}"]
                done = cli(*words, env=self.prefect.environment)
                assert done.returncode == 0, done.stderr
        (run,) = RunFolder.all_under(root)
        return run

    def kill_a_run_of_the_command_line(self, root: str) -> None:
        """Has no worker and no deployment: only its server can notice."""
        command = [*PROGRAM, "run", *self.settings(root)]
        environment = {**self.prefect.environment, "http_proxy": "http://127.0.0.1:9"}
        run = subprocess.Popen(command, env=environment | {MARK: root}, stdout=subprocess.DEVNULL)
        self.wait_for_steps(root, 2)
        run.kill()
        run.wait()
        wait_for(lambda: not living(MARK), limit_s=60)  # its trainer saves and leaves
        self.left_at = max(self.steps(root))
        assert self.run(root).read().status == "running"
        assert "interrupted" in cli("runs", f"storage.root={self.folder / root}").stdout
        assert "its process is gone (killed?)" in str(self.run(root).read().reason)

    def start_worker(self) -> None:
        self.worker = self.prefect.start(*WORKER)

    def settings(self, root: str) -> list[str]:
        """Runs of a root share their settings: the next continues an interrupted one."""
        return [*self.overrides, f"storage.root={self.folder / root}"]

    def run(self, root: str) -> RunFolder:
        (folder,) = (self.folder / root / "runs").iterdir()
        return RunFolder(folder)

    def start(self, deployment: str, root: str) -> FlowRun:
        return FlowRun(self.prefect, deployment, self.settings(root))

    def steps(self, root: str) -> list[int]:
        return steps_below(self.folder / root)

    def wait_for_steps(self, root: str, num_steps: int) -> None:
        """Waits until so many more steps are done, and then for a part of a step."""
        target = max(self.steps(root), default=0) + num_steps
        wait_for(lambda: max(self.steps(root), default=0) >= target)
        time.sleep(self.chance.uniform(0, 0.3))

    def retry_the_crashed(self) -> None:
        """Does with the night what Retry in the UI does."""
        wait_for(lambda: self.night.is_in("Crashed"))
        time.sleep(2)  # worker and runner both tell of a killed process
        assert self.night.retry() == "ACCEPT"

    def kill(self, pid: int, root: str) -> int:
        """Kills a process and returns the last step that was done before."""
        os.kill(pid, signal.SIGKILL)
        return max(self.steps(root))

    def compare(self, root: str) -> None:
        """Compares with the undisturbed run: every number of every step."""
        expected = comparable(self.undisturbed())
        assert [row["step"] for row in expected] == list(range(NUM_STEPS + 1))
        assert comparable(self.run(root)) == expected
        assert self.run(root).read().status == "finished"

    def resumed_at(self, root: str) -> list[int]:
        """Returns the steps after which training continued, in order."""
        said = (self.run(root).path / "log.txt").read_text()
        return [int(step) for step in re.findall(r"training continues after step (\d+)", said)]


def disturbed_run(tiny_overrides: list[str]) -> list[str]:
    """Returns settings of a run that takes long enough to be disturbed."""
    return short(tiny_overrides, total_steps=NUM_STEPS, save_freq=SAVE_FREQ, test_freq=10)


@pytest.fixture(scope="module")
def place(prefect: Prefect, undisturbed: Path, tiny_overrides: list[str]) -> Iterator[Place]:
    place = Place(prefect, undisturbed, disturbed_run(tiny_overrides))
    try:
        yield place
    finally:
        stop(place.worker)


@pytest.mark.chaos
def test_nobody_is_left_to_say_that_worker_and_flow_run_were_killed(place):
    place.night = place.start(NIGHTLY, "night")
    wait_for(lambda: place.night.is_in("Running"))
    second = place.start(NIGHTLY, "night")
    wait_for(lambda: second.is_in("Cancelled"))  # the deployment's own limit
    place.wait_for_steps("night", 4)
    flow_run = place.night.main_process().pid
    place.kill(place.worker.pid, "night")
    place.killed_at = place.kill(flow_run, "night")
    assert place.night.is_in("Running")
    wait_for(lambda: not place.night.processes(), limit_s=60)
    place.worker.wait()
    place.kill_a_run_of_the_command_line("alone")
    place.undisturbed()
    place.start_worker()


@pytest.mark.chaos
def test_a_lost_night_is_crashed_and_retried_equals_an_undisturbed_one(place, survived):
    place.retry_the_crashed()
    alone = place.run("alone").read().flow_run_id
    path = f"/flow_runs/{alone}"
    wait_for(lambda: place.prefect.request("GET", path)["state"]["name"] == "Crashed")
    wait_for(lambda: place.night.is_in("Completed", "Failed"))  # it was Crashed
    place.night.ends()
    messages = [message for name, message in place.night.states() if name == "Crashed"]
    assert "No heartbeat" in messages[-1]
    assert place.night.read()["run_count"] == 2
    place.compare("night")
    (resumed_at,) = place.resumed_at("night")
    lost = place.killed_at - resumed_at  # below 0 where the trainer outlived it by a step
    assert lost < SAVE_FREQ
    survived("SIGKILL", "Prefect worker and flow run", steps_lost=max(lost, 0))


@pytest.mark.chaos
def test_a_run_outlives_its_worker(place, survived):
    place.prefect.disable_automations()  # a server that hangs for a minute hears no heartbeat
    run = place.start(ON_DEMAND, "alone")
    place.wait_for_steps("alone", 3)
    place.kill(place.worker.pid, "alone")
    place.worker.wait()
    run.ends()
    assert run.read()["run_count"] == 1
    wait_for(lambda: not run.processes(), limit_s=60)
    assert place.resumed_at("alone") == [place.left_at]
    place.compare("alone")
    survived("SIGKILL", "the whole command", steps_lost=0)
    survived("SIGKILL", "Prefect worker", steps_lost=0)
