import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.runs.rollout_log import RolloutLog, rollout_files
from rl_core.system.atomic import reading
from rl_core.types import Rollout
from tests.support.faults import leave_free, mounted_small_disk, run_and_kill_at_event
from tests.support.waiting import wait_for

MakeRollout = Callable[..., Rollout]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Hundreds of flushes to the disk take no time here."""
    with mounted_small_disk(tmp_path, 16 * 2**20) as folder:
        yield folder


def written(folder: Path, make_rollout: MakeRollout, steps: range, rows: int = 2) -> RolloutLog:
    log = RolloutLog(folder / "rollouts", "r")
    for step in steps:
        rollouts = [make_rollout([1], [2], group_id=i) for i in range(rows)]
        assert log.write(step, 0, rollouts, {}) is not None
    return log


def table(log: RolloutLog) -> pa.Table:
    files = rollout_files(log.folder)
    return pa.concat_tables([pq.read_table(file.path) for file in files])


def names(log: RolloutLog) -> list[str]:
    return sorted(path.name for path in log.folder.iterdir())


def singles(first: int, last: int) -> list[str]:
    return [f"step_{step:06d}.parquet" for step in range(first, last + 1)]


def joined(log: RolloutLog) -> Path:
    """Makes one file of all, as earlier versions did."""
    files = rollout_files(log.folder)
    file = log.folder / f"steps_{files[0].first:06d}_{files[-1].last:06d}.parquet"
    pq.write_table(table(log), file)
    return file


def test_a_step_in_a_joined_file_and_in_its_own_counts_once(tmp_path, make_rollout):
    """An earlier version was killed while it joined them."""
    log = written(tmp_path, make_rollout, range(1, 4))
    before = table(log)
    joined(log)
    written(tmp_path, make_rollout, range(4, 5))
    assert [(file.first, file.last) for file in rollout_files(log.folder)] == [(1, 3), (4, 4)]
    log.cut_after(3)
    assert table(log).equals(before)
    log.cut_after(2)
    assert table(log).equals(before.slice(0, 4))


def test_a_cut_killed_at_any_system_event_is_done_by_the_next(disk, make_rollout):
    made = written(disk / "made", make_rollout, range(1, 8))
    joined(made)
    for path in made.folder.glob("step_*"):
        path.unlink()
    written(disk / "made", make_rollout, range(8, 10))
    for event_number in itertools.count(1):
        log = RolloutLog(disk / str(event_number) / "rollouts", "r")
        shutil.copytree(made.folder, log.folder)
        killed = run_and_kill_at_event(lambda log=log: log.cut_after(3), event_number)  # type: ignore[misc]
        steps = table(log)["step"].to_pylist()
        assert steps == sorted(steps)
        assert all(steps.count(step) == 2 for step in set(steps) | {1, 2, 3})
        log.cut_after(3)
        assert names(log) == ["steps_000001_000003.parquet"]
        assert table(log)["step"].to_pylist() == [1, 1, 2, 2, 3, 3]
        if not killed:
            break
    assert event_number > 5
    made.cut_after(-1)
    assert names(made) == []


def test_files_stay_where_they_are_while_somebody_reads_them(tmp_path, make_rollout):
    log = written(tmp_path, make_rollout, range(1, 4))
    with reading(log.folder):
        assert log.age_out(0) == []
        assert names(log) == singles(1, 3)
    assert len(log.age_out(0)) == 2


def test_the_oldest_steps_go_first_and_the_newest_file_stays(tmp_path, make_rollout, caplog):
    log = written(tmp_path, make_rollout, range(1, 6))
    sizes = [file.path.stat().st_size for file in rollout_files(log.folder)]
    assert log.age_out(sum(sizes)) == []
    dry = log.age_out(sum(sizes[2:]), dry_run=True)
    assert [(file.first, size) for file, size in dry] == [(1, sizes[0]), (2, sizes[1])]
    assert names(log) == singles(1, 5)
    assert log.age_out(sum(sizes[2:])) == dry
    assert names(log) == singles(3, 5)
    assert "rollouts of steps 1 to 2 deleted: over storage.rollout_quota_bytes" in caplog.text
    log.age_out(0)
    assert names(log) == singles(5, 5)


def test_a_cut_without_room_never_leaves_rows_that_a_resume_makes_again(small_disk, make_rollout):
    log = written(small_disk, make_rollout, range(1, 5), rows=2_000)
    file = joined(log)
    for path in log.folder.glob("step_*"):
        path.unlink()

    def used_bytes() -> int:
        stats = os.statvfs(small_disk)
        return (stats.f_blocks - stats.f_bfree) * stats.f_frsize

    # A reader's threads may hold the files that are gone, and their room, a moment longer.
    wait_for(lambda: used_bytes() == file.stat().st_blocks * 512)
    leave_free(small_disk, 0)
    log.cut_after(2)
    assert names(log) == []


@pytest.mark.chaos
def test_rollouts_go_on_when_there_is_room_again(small_disk, make_rollout, survived):
    log = written(small_disk, make_rollout, range(1, 2))
    before = table(log).num_rows
    rollouts = [make_rollout([1], [2], group_id=i) for i in range(40)]
    outcomes = []
    for pages in range(12):  # full at every block of the file
        leave_free(small_disk, pages * 4096)
        outcomes.append(log.write(2, 0, rollouts, {}) is not None)
        expected = singles(1, 2 if outcomes[-1] else 1)
        assert names(log) == expected
        (log.folder / "step_000002.parquet").unlink(missing_ok=True)
    assert outcomes[0] is False
    assert outcomes[-1] is True
    assert outcomes == sorted(outcomes)
    survived("ENOSPC", "any block of a rollout file", rows_lost=before - table(log).num_rows)
