"""A run on S3 through faults of the store, continued on another machine, as a calm one."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from rl_core.runs.run_folder import RunFolder
from rl_core.storage.object_store import ObjectStore
from rl_core.storage.spool import files_of
from tests.flows.test_run import LIMIT_S, PROGRAM, ROOT
from tests.rl_core.test_trainer import comparable
from tests.support import s3
from tests.support.programs import own_prefect, started
from tests.support.runs import short, steps_below
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

FAULTS: tuple[s3.Fault, ...] = ("slow", "reset", "503", "gone")
MORE_STEPS = 2
PAUSE_S = "0.15"
"""Before each reward while the store is at fault: the calm run does all those steps again."""
SETTINGS = [
    "run_id=r",
    "actor.lr_schedule=constant",
    "env.reward=tests.support.user_rewards:letters_at_leisure",
    "reward.env=[REWARD_PAUSE_S]",
    "evaluation.max_problems=4",
]


def start(
    machine: Path, command: str, settings: list[str], port: int, pause_s: str = "0"
) -> subprocess.Popen[str]:
    """Starts a command on a machine, which is a working folder here."""
    machine.mkdir()
    environment = own_prefect(machine / "prefect") | {"PYTHONPATH": str(ROOT)}
    environment["REWARD_PAUSE_S"] = pause_s
    environment |= s3.environment(port)
    return started(*PROGRAM, command, *settings, cwd=machine, env=environment)


def spool(machine: Path) -> Path:
    return next((machine / "outputs").glob("s3-*"), machine / "no-spool-yet")


@pytest.mark.chaos
def test_faults_of_s3_and_a_move_change_nothing(tmp_path, tiny_overrides, s3_port, survived):
    settings = short(tiny_overrides, save_freq=1, test_freq=1000) + SETTINGS
    on_s3 = [*settings, f"storage.root={s3.URL}"]
    one, two, calm = (tmp_path / name for name in ("one", "two", "calm"))
    with s3.faulty_proxy(s3_port) as proxy:
        first = start(one, "train", [*on_s3, "trainer.total_steps=1000"], proxy.port, PAUSE_S)
        for fault in FAULTS:
            done = len(steps_below(spool(one)))
            wait_for(lambda n=done: len(steps_below(spool(one))) > n, process=first)
            proxy.fault = fault
            wait_for(lambda f=fault: f in proxy.harmed, process=first)
        done = len(steps_below(spool(one)))
        wait_for(lambda: len(steps_below(spool(one))) > done, process=first)  # without a store
        proxy.fault = "none"
        os.kill(first.pid, signal.SIGTERM)
        _, said = first.communicate(timeout=LIMIT_S)
    assert first.returncode == 1, said
    last_done = max(steps_below(spool(one)))
    shutil.rmtree(one)

    total_steps = f"trainer.total_steps={last_done + MORE_STEPS}"
    second = start(two, "run", [*on_s3, total_steps], s3_port)
    alone = start(calm, "train", [*settings, total_steps], s3_port)
    out, said = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 0, said
    resumed = RunFolder.under(spool(two), "r")
    record = resumed.read()
    assert record.status == "finished"
    reasons = [attempt.reason.partition(" ")[0] for attempt in record.attempts]
    assert reasons == ["started", "continued"]
    assert record.attempts[1].from_step == last_done

    _, of_calm = alone.communicate(timeout=LIMIT_S)
    assert alone.returncode == 0, of_calm
    assert comparable(resumed) == comparable(RunFolder.under(calm / "outputs", "r"))

    there = ObjectStore(s3.URL).list()
    published = {key: entry.size for key, entry in there.items() if key.startswith("runs/")}
    here = files_of(resumed.path)
    assert published == {f"runs/r/{path}": stat.size for path, stat in here.items()}
    assert "runs/r/report.html" in published
    assert {"data", "evaluations", "locks", "runs"} <= {key.split("/")[0] for key in there}
    assert not any(secret in out + said for secret in list(s3.KEYS.values())[:2])
    for fault in FAULTS:
        survived("object store", fault, steps_lost=0)
