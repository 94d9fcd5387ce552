"""Event files, read back by a reader of our own that forgets steps as TensorBoard does."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rl_core.config.operations import TrainerConfig
from rl_core.config.run import RunConfig
from rl_core.system.disk_reserve import RESERVE_BYTES
from rl_core.tracking.tensorboard_tracker import TensorBoardTracker
from tests.support.faults import leave_free, mounted_small_disk

WANTED = RunConfig(trainer=TrainerConfig(logger=("tensorboard",)))


def curves(run_folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Returns each tag's (step, value) as TensorBoard shows them.

    Files in the order of their names; a record is its length (8 bytes), a checksum (4), data and a
    checksum (4), and one cut short ends its file; the start of a session at a step purges all from
    that step on.
    """
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found: dict[str, list[tuple[int, float]]] = {}
    for file in sorted((run_folder / "tensorboard").iterdir()):
        data, at = file.read_bytes(), 0
        while at + 12 <= len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            if at + length + 16 > len(data):
                break
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16
            if event.session_log.status == SessionLog.START:
                found = {
                    tag: [point for point in points if point[0] < event.step]
                    for tag, points in found.items()
                }
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def write(run_folder: Path, start_step: int, first: int, last: int) -> None:
    with TensorBoardTracker(WANTED, run_folder, start_step) as tracker:
        for step in range(first, last + 1):
            tracker.on_step(step, last, {"critic/score/mean": step / 4, "timing_s/step": 0.5})


def test_a_run_that_starts_over_and_is_resumed_shows_each_step_once(tmp_path):
    write(tmp_path, 0, 0, 3)
    write(tmp_path, 0, 0, 12)
    write(tmp_path, 10, 11, 20)
    shown = curves(tmp_path)
    assert shown["critic/score/mean"] == [(step, step / 4) for step in range(21)]
    assert shown["timing_s/step"] == [(step, 0.5) for step in range(21)]
    assert len(list((tmp_path / "tensorboard").iterdir())) == 3


@pytest.mark.chaos
def test_a_full_disk_costs_a_warning_and_what_was_written_can_be_read(tmp_path, caplog, survived):
    with mounted_small_disk(tmp_path, RESERVE_BYTES) as disk:
        with TensorBoardTracker(WANTED, disk, 0) as tracker:
            tracker.on_step(1, 99, {"a/b": 0.5, "c": float("nan")})
            assert curves(disk)["a/b"] == [(1, 0.5)], "on the disk before the next step"
            leave_free(disk, 0)
            for step in range(2, 99):
                tracker.on_step(step, 99, {f"a/{i}": 0.5 for i in range(100)})
        assert curves(disk)["a/b"] == [(1, 0.5)]
        with TensorBoardTracker(WANTED, disk, 98) as tracker:
            tracker.on_step(99, 99, {"a/b": 1.0})
    assert 1 <= len(caplog.messages) <= 2
    assert all("TensorBoard lacks the rest of this run" in text for text in caplog.messages)
    assert "No space left on device" in caplog.messages[0]
    survived("ENOSPC", "TensorBoard's file")


def test_without_tensorboard_in_the_settings_nothing_is_written_or_loaded(tmp_path):
    with TensorBoardTracker(RunConfig(), tmp_path, 0) as tracker:
        tracker.on_step(1, 2, {"a": 1.0})
    assert list(tmp_path.iterdir()) == []
    code = "import sys, rl_core.tracking.tensorboard_tracker; print(*sys.modules)"
    assert "tensorboardX" not in subprocess.check_output([sys.executable, "-c", code], text=True)
