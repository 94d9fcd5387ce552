import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_core.system.disk_reserve import (
    RESERVE,
    RESERVE_BYTES,
    demand_room,
    hold_reserve,
    write_last_words,
)
from tests.support.faults import leave_files, leave_free, mounted_small_disk
from tests.support.programs import python
from tests.support.runs import new_run

DISK_BYTES = 3 * RESERVE_BYTES


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_small_disk(tmp_path, DISK_BYTES) as folder:
        yield folder


def free(disk: Path) -> int:
    stats = os.statvfs(disk)
    return stats.f_bavail * stats.f_frsize


def test_the_reserve_takes_real_blocks_and_nothing_large_is_written_until_they_are_back(disk):
    before = free(disk)
    demand_room(disk)
    assert hold_reserve(disk)
    assert hold_reserve(disk)  # held once, whoever asks again
    assert free(disk) == before - RESERVE_BYTES
    leave_free(disk, 0)
    demand_room(disk)  # the reserve is there: a large write fails by itself
    write_last_words(disk, lambda: (disk / "words").write_bytes(b"w" * 5_000) and None)
    assert (disk / "words").stat().st_size == 5_000
    assert free(disk) >= RESERVE_BYTES - 2 * 4096
    with pytest.raises(OSError, match="No space left"):
        demand_room(disk)
    assert (disk / RESERVE).stat().st_size == 0
    leave_free(disk, RESERVE_BYTES + 2 * 4096)
    demand_room(disk)
    assert (disk / RESERVE).stat().st_size == RESERVE_BYTES


def test_a_disk_without_room_has_no_reserve_and_no_rule(small_disk):
    assert not hold_reserve(small_disk)
    assert not (small_disk / RESERVE).exists()
    demand_room(small_disk)
    leave_free(small_disk, 0)
    with pytest.raises(OSError, match="No space left") as caught:
        write_last_words(small_disk, lambda: (small_disk / "x").write_bytes(b"w" * 5_000) and None)
    assert caught.value.errno == errno.ENOSPC


def test_what_is_no_full_disk_keeps_the_reserve(disk):
    hold_reserve(disk)
    with pytest.raises(FileNotFoundError):
        write_last_words(disk, lambda: (disk / "none" / "x").write_bytes(b"w") and None)
    assert (disk / RESERVE).stat().st_size == RESERVE_BYTES


@pytest.mark.chaos
def test_a_run_on_a_full_disk_still_says_why_it_ends(disk, survived):
    run = new_run(disk)
    run.metrics.append(1, {"a": 1.0})
    leave_free(disk, 0)
    with run.log_to_file():
        for step in range(2, 300):
            run.metrics.append(step, {f"name/{i}": 0.5 for i in range(20)})
            logging.getLogger("rl_core.x").warning("words of step %d", step)
        run.update(status="failed", reason="the disk is full")
    assert [row["step"] for row in run.metrics.read()] == list(range(1, 300))
    lines = (run.path / "log.txt").read_text().splitlines()
    assert [line.split()[-1] for line in lines] == [str(step) for step in range(2, 300)]
    assert run.read().reason == "the disk is full"
    assert not (run.path / RESERVE).exists()  # the run is over: nothing more to be said
    survived("ENOSPC", "metrics lines and last words", rows_lost=299 - len(run.metrics.read()))


def test_without_any_room_a_record_and_lines_are_lost_but_not_the_run(small_disk, caplog):
    run = new_run(small_disk)
    run.metrics.append(1, {"a": 0.5})
    before = (run.path / "run.json").read_bytes()
    with run.log_to_file():
        logging.getLogger("rl_core.x").warning("first words")
        size = (run.path / "log.txt").stat().st_size
        leave_free(small_disk, 0)
        logging.getLogger("rl_core.x").warning("w" * 10_000)
        run.update(reason="no room")
        run.metrics.append(2, dict.fromkeys(map(str, range(300)), 0.123456789))
    assert "the metrics of step 2 could not be written" in caplog.text
    (small_disk / "ballast").unlink()
    run.metrics.append(3, {"a": 0.25})
    assert [(row["step"], row["a"]) for row in run.metrics.read()] == [(1, 0.5), (3, 0.25)]
    assert (run.path / "run.json").read_bytes() == before
    assert "run.json could not be written, so it lacks {'reason': 'no room'}" in caplog.text
    assert (run.path / "log.txt").read_text().startswith("2")
    assert (run.path / "log.txt").read_bytes().endswith(b"\n")
    assert size < (run.path / "log.txt").stat().st_size < 10_000  # the shorter lines, whole
    assert [p.name for p in run.path.iterdir() if p.name.startswith(".tmp-")] == []


def test_a_worker_whose_log_has_no_room_works_on(small_disk):
    code = """
import sys
from pathlib import Path
from rl_core.workers.actors import prepare_process
prepare_process({}, Path(sys.argv[1]))
import logging
for number in range(20_000):
    print("line", number)
    if number % 5_000 == 0:
        logging.warning("warned")
sys.stderr.flush()
Path(sys.argv[2]).write_text("done")
"""
    log, done = small_disk / "learner.log", small_disk.parent / "done"
    leave_free(small_disk, 4096 * 2)
    result = python(code, log, done)
    assert (result.returncode, result.stderr) == (0, "")
    assert done.read_text() == "done"
    assert log.read_text().startswith("line 0\n")
    leave_files(small_disk, 0)
    done.unlink()
    other = small_disk / "engine_0.log"
    assert python(code, other, done).returncode == 0
    assert done.read_text() == "done"
    assert not other.exists()
