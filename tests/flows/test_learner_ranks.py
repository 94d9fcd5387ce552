"""A whole run whose learner is two processes, one of which is killed, against one process."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_core.runs.run_folder import RunFolder
from tests.flows.test_run import LIMIT_S, Place
from tests.rl_core.test_trainer import comparable
from tests.support.chaos import Ledger
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

STEPS = 4
SETTINGS = [
    f"trainer.total_steps={STEPS}",
    "trainer.save_freq=2",
    "trainer.test_freq=4",
    "rollout.engine=hf",
    "actor.lr=1e-6",
    "critic.lr=1e-6",
    # Without a reward to learn from, advantages are the rounding of a KL, scaled to 1.
    "env.reward=tests.support.user_rewards:share_of_letters",
    "retry.delay_s=0",
    "evaluation.max_problems=4",
]


def learner_pids(place: Place) -> list[int]:
    found = []
    for process in psutil.process_iter():
        try:
            is_ours = process.environ().get("PREFECT_HOME") == str(place.home)
            if is_ours and "LearnerActor" in " ".join(process.cmdline()):
                found.append(process.pid)
        except (psutil.Error, OSError):
            continue
    return sorted(found)


@pytest.mark.chaos
def test_a_run_of_two_ranks_is_one_of_one_process_though_a_rank_is_killed(
    tmp_path: Path, tiny_overrides: list[str], survived: Ledger
) -> None:
    settings = [x for x in tiny_overrides if not x.startswith("trainer.")] + SETTINGS
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one = Place(tmp_path / "one", settings)
    calm = one.run()
    assert calm.returncode == 0, calm.stderr

    two = Place(tmp_path / "two", [*settings, "resources.learner_ranks=2"])
    process = two.start()
    wait_for(lambda: STEPS - 1 in two.steps(), process=process)
    pids = learner_pids(two)
    assert len(pids) == 2
    os.kill(pids[-1], signal.SIGKILL)
    _, said = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, said
    attempts = two.record()["attempts"]
    assert len(attempts) == 2, attempts

    for row, expected in zip(rows(two), rows(one), strict=True):
        assert row == pytest.approx(expected, rel=1e-5, abs=1e-5)
    survived("SIGKILL", "one of two learner ranks in a run", steps_lost=1)


def rows(place: Place) -> list[dict[str, Any]]:
    return [
        {name: x for name, x in row.items() if not name.startswith("global_seqlen/")}
        for row in comparable(RunFolder(place.folder()))
    ]
