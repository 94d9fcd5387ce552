"""A whole run on machines that share a folder, two of which lose power, against one."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rl_core.runs.run_folder import RunFolder
from tests.flows.test_run import LIMIT_S, PROGRAM, Place
from tests.rl_core.test_trainer import comparable
from tests.support.machines import Machine, ray_address, ray_machines
from tests.support.runs import short, steps_below
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

STEPS = 6
SETTINGS = [
    "actor.lr=1e-6",
    "critic.lr=1e-6",
    # Without a reward to learn from, advantages are the rounding of a KL, scaled to 1.
    "env.reward=tests.support.user_rewards:share_of_letters",
    "retry.delay_s=0",
    "evaluation.max_problems=4",
]
CPUS = (1, 1, 2, 0)
"""A learner rank fits on the first, which has Ray's head, and the second, the engine on the third;
the fourth has the driver, which asks for none."""
PLACES = ["resources.learner_ranks=2", "resources.rollout_threads=2"]


@dataclass
class Cluster:
    machines: list[Machine]
    environment: dict[str, str]
    shared: Path
    """A folder that all machines see, the model in it."""

    @property
    def driver(self) -> Machine:
        return self.machines[-1]

    def start(self, settings: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts a run on the driver's machine."""
        disk = self.driver.disk
        own = {name: x for name, x in self.environment.items() if name != "PREFECT_API_URL"}
        own |= {
            "PREFECT_HOME": str(disk / "prefect"),
            "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(disk / "prefect" / "storage"),
        }
        where = [f"storage.root={self.shared}/out", f"model.path={self.shared}/model"]
        where.append(f"resources.ray_address={ray_address(self.machines)}")
        return self.driver.start([*PROGRAM, "run", *settings, *where], own, self.log)

    @property
    def log(self) -> Path:
        return self.driver.outside / "run.log"

    @property
    def run(self) -> Path:
        (folder,) = (self.shared / "out" / "runs").iterdir()
        return folder

    def steps(self) -> list[int]:
        return steps_below(self.shared / "out")

    def restart(self, machine: Machine) -> None:
        machine.boot()
        machine.start_ray(self.environment, self.machines[0], CPUS[self.machines.index(machine)])


@pytest.mark.chaos
def test_machines_without_power_change_nothing(tmp_path, tiny_model_path, tiny_overrides, survived):
    tiny = [text for text in tiny_overrides if not text.startswith("model.path=")]
    settings = short(tiny, total_steps=STEPS, test_freq=STEPS, save_freq=2) + SETTINGS
    one = Place(tmp_path, [*settings, f"model.path={tiny_model_path}"])
    one.arguments[0] = "train"  # without an evaluation
    calm = one.run()
    assert calm.returncode == 0, calm.stderr

    shared = tmp_path / "shared"
    with ray_machines(tmp_path, CPUS) as (machines, environment):
        shutil.copytree(tiny_model_path, shared / "model")
        cluster = Cluster(machines, environment, shared)
        process = cluster.start([*settings, *PLACES])
        _, second, third, _ = cluster.machines

        def wait(condition: Callable[[], object]) -> None:
            wait_for(condition, process=process, seen=cluster.log.read_text)

        wait(lambda: 0 in cluster.steps())
        third.set_link(up=False)
        time.sleep(5)
        third.set_link(up=True)
        wait(lambda: 1 in cluster.steps())
        third.kill()
        cluster.restart(third)
        wait(lambda: 3 in cluster.steps())
        (engine,) = third.processes("ray::RolloutActor")
        engine.suspend()  # so that the run cannot end before the other machine does
        wait((cluster.run / "checkpoints" / "step_000002").is_dir)
        second.kill()
        engine.resume()
        cluster.restart(second)
        assert process.wait(LIMIT_S) == 0, cluster.log.read_text()

    said = cluster.log.read_text()
    assert "engine_0 died: " in said
    assert "training continues after step" in said
    record = json.loads((cluster.run / "run.json").read_text())
    assert len(record["attempts"]) == 2, record["attempts"]
    assert list(cluster.run.glob("workers/.*")) == []
    for name in ("learner", "learner_1", "engine_0"):
        assert "model in float32" in (cluster.run / "workers" / f"{name}.log").read_text(), name
    for row, expected in zip(_rows(cluster.run), _rows(one.folder()), strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-5)
    survived("cut link", "an engine's machine, for 5 s")
    survived("power cut", "an engine's machine and a learner rank's", steps_lost=1)


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [
        {name: x for name, x in row.items() if not name.startswith("global_seqlen/")}
        for row in comparable(RunFolder(folder))
    ]
