from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.runs.rollout_log import RolloutLog, remove_after, samples_of_step, step_files
from rl_core.system.atomic import reading
from rl_core.types import Rollout
from tests.support.faults import leave_free

MakeRollout = Callable[..., Rollout]


def written(folder: Path, make_rollout: MakeRollout, steps: range, rows: int = 2) -> RolloutLog:
    log = RolloutLog(folder / "rollouts", "r")
    for step in steps:
        rollouts = [make_rollout([1], [2], group_id=i) for i in range(rows)]
        assert log.write(step, 0, rollouts, {}) is not None
    return log


def table(log: RolloutLog) -> pa.Table:
    return pa.concat_tables([pq.read_table(file.path) for file in step_files(log.folder)])


def names(log: RolloutLog) -> list[str]:
    return sorted(path.name for path in log.folder.iterdir())


def singles(first: int, last: int) -> list[str]:
    return [f"step_{step:06d}.parquet" for step in range(first, last + 1)]


def test_joined_files_of_earlier_versions_are_read_and_go_with_their_last_step(
    tmp_path, make_rollout
):
    log = written(tmp_path, make_rollout, range(1, 4))
    before = table(log)
    for path in log.folder.iterdir():
        path.unlink()
    pq.write_table(before, log.folder / "steps_000001_000003.parquet")
    written(tmp_path, make_rollout, range(4, 5))
    assert [file.last_step for file in step_files(log.folder)] == [3, 4]
    remove_after(log.folder, 3)
    assert table(log).equals(before)
    remove_after(log.folder, 2)  # no step may be there twice after a resume
    assert names(log) == []


def test_files_stay_where_they_are_while_somebody_reads_them(tmp_path, make_rollout):
    log = written(tmp_path, make_rollout, range(1, 4))
    with reading(log.folder):
        assert log.age_out(0) == []
        assert names(log) == singles(1, 3)
    assert len(log.age_out(0)) == 2


def test_the_oldest_steps_go_first_and_the_newest_file_stays(tmp_path, make_rollout, caplog):
    log = written(tmp_path, make_rollout, range(1, 6))
    sizes = [file.path.stat().st_size for file in step_files(log.folder)]
    assert log.age_out(sum(sizes)) == []
    dry = log.age_out(sum(sizes[2:]), dry_run=True)
    assert [(file.last_step, size) for file, size in dry] == [(1, sizes[0]), (2, sizes[1])]
    assert names(log) == singles(1, 5)
    assert log.age_out(sum(sizes[2:])) == dry
    assert names(log) == singles(3, 5)
    assert "rollouts of steps 1 to 2 deleted: over storage.rollout_quota_bytes" in caplog.text
    log.age_out(0)
    assert names(log) == singles(5, 5)


@pytest.mark.chaos
def test_rollouts_go_on_when_there_is_room_again(small_disk, make_rollout, caplog, survived):
    log = written(small_disk, make_rollout, range(1, 2))
    before = table(log).num_rows
    rollouts = [make_rollout([1], [2], group_id=i) for i in range(40)]
    outcomes = []
    for pages in range(12):  # full at every block of the file
        leave_free(small_disk, pages * 4096)
        outcomes.append(log.write(2, 0, rollouts, {}) is not None)
        assert names(log) == singles(1, 2 if outcomes[-1] else 1)
        (log.folder / "step_000002.parquet").unlink(missing_ok=True)
    assert "the rollouts of step 2 could not be written" in caplog.text
    assert (outcomes[0], outcomes[-1]) == (False, True)
    assert outcomes == sorted(outcomes)
    survived("ENOSPC", "any block of a rollout file", rows_lost=before - table(log).num_rows)


def test_samples_are_the_first_eight_rows_of_a_step_or_those_that_there_are(tmp_path, make_rollout):
    log = RolloutLog(tmp_path / "rollouts", "r")
    assert samples_of_step(log.folder, 1) == []
    for step, num_rows in ((1, 15), (2, 3)):
        rollouts = [make_rollout([1], [2], score=float(step * 100 + i)) for i in range(num_rows)]
        log.write(step, 0, rollouts, {})
    for step, num_samples in ((1, 8), (2, 3), (3, 0)):
        samples = [(row["step"], row["score"]) for row in samples_of_step(log.folder, step)]
        assert samples == [(step, step * 100 + i) for i in range(num_samples)]
    file = log.folder / "step_000002.parquet"
    file.write_bytes(file.read_bytes()[:100])
    assert samples_of_step(log.folder, 2) == []
