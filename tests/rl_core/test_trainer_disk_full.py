"""A run whose disk fills up while it trains, and has room again later: what is lost, what not."""

import json
from pathlib import Path

import pytest

from rl_core.checkpoints.store import list_checkpoints
from rl_core.config.run import RunConfig
from rl_core.runs.rollout_log import rollout_files
from rl_core.system.disk_reserve import RESERVE, RESERVE_BYTES
from tests.rl_core.test_crash_resume import saved_files
from tests.rl_core.test_trainer import comparable, settings, train_until
from tests.support.faults import leave_free, mounted_small_disk

STEPS = 6
DISK_BYTES = RESERVE_BYTES + 24 * 2**20


def six_steps(root: Path, run_id: str) -> RunConfig:
    config = settings(root, run_id, "hf")
    trainer = config.trainer.model_copy(update={"total_steps": STEPS})
    # At the end of a step its save is done: what the test does to the disk then meets no other.
    checkpoints = config.checkpoints.model_copy(update={"in_background": False})
    return config.model_copy(update={"trainer": trainer, "checkpoints": checkpoints})


@pytest.mark.slow
@pytest.mark.chaos
def test_a_disk_full_for_two_steps_costs_two_rollout_files_and_a_checkpoint(
    tmp_path, tiny_model_path, caplog, survived
):
    whole = train_until(six_steps(tmp_path, "whole"), tiny_model_path)
    with mounted_small_disk(tmp_path, DISK_BYTES) as disk:
        done: list[int] = []
        reserve = disk / "runs" / "full" / RESERVE

        def on_step(step: int) -> None:
            done.append(step)
            if step == 3:
                assert reserve.stat().st_size == RESERVE_BYTES
                leave_free(disk, 0)
            if step == 5:
                (disk / "ballast").unlink()

        run = train_until(six_steps(disk, "full"), tiny_model_path, on_step=on_step)
        rows = comparable(run)
        assert rows == comparable(whole)
        assert [row["step"] for row in rows] == list(range(STEPS + 1))
        # A save that is waited for counts in the step after it; the last has none after it.
        timed = [row["step"] for row in whole.metrics.read() if "timing_s/save_checkpoint" in row]
        assert timed == [2, 3, 4, 5, 6]
        free = [json.loads(line)["disk/free_gib"] for line in lines(run.path)[1:]]
        assert max(free[3:5]) < min(free[:3] + free[5:])
        assert [file.last_step for file in rollout_files(run.rollouts.folder)] == [1, 2, 3, 6]
        assert [c.step for c in list_checkpoints(run.path)] == [2, 6]
        after = saved_files(run.path / "checkpoints" / "latest")
        assert after == saved_files(whole.path / "checkpoints" / "latest")
        assert list(run.path.rglob(".tmp-*")) == []
        assert reserve.stat().st_size == RESERVE_BYTES
    for words in (
        "the rollouts of step 4 could not be written",
        "step 4 was not saved ([Errno 28] No space left on device",
        "the rollouts of step 5 could not be written",
    ):
        assert words in caplog.text
    survived(
        "ENOSPC",
        "two steps of a run",
        steps_lost=len(done) - len(set(done)),
        rows_lost=len(comparable(whole)) - len(rows),
    )


def lines(run: Path) -> list[str]:
    return (run / "metrics.jsonl").read_text().splitlines()
