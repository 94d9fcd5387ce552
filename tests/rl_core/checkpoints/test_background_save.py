import resource
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from rl_core.checkpoints import background_save
from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.checkpoints.store import latest, list_checkpoints, save_checkpoint
from rl_core.config.operations import CheckpointsConfig
from rl_core.errors import WorkerDied
from tests.support.checkpoint_files import save_steps, steps
from tests.support.faults import mounted_small_disk

DEADLINE_S = 30


class Source:
    """One number that training moves, its snapshot, and a write that waits to be released."""

    def __init__(self) -> None:
        self.number = 0
        self.copied = 0
        self.may_write = threading.Event()
        self.may_write.set()

    def snapshot(self) -> int:
        self.copied = self.number
        return 1_010

    def write_snapshot(self, folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"w" * 1_000)
        assert self.may_write.wait(DEADLINE_S)
        (folder / "number").write_text(str(self.copied))


def saving(run: Path, source: Source, **kept: Any) -> BackgroundSave:
    return BackgroundSave(CheckpointsConfig(**kept), run, source.snapshot, source.write_snapshot)


def saved(run: Path) -> dict[int, str]:
    return {c.step: (c.path / "number").read_text() for c in list_checkpoints(run)}


def test_what_cannot_be_deleted_or_written_costs_no_later_save(tmp_path, caplog):
    save_steps(tmp_path, {1: 0.5, 2: 0.1, 3: 0.1})
    weights = {"number": torch.zeros(2**20)}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    folder = tmp_path / "checkpoints/step_000002"
    with mounted_small_disk(folder):  # as a container may leave it, or a file open on NFS
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))  # as a FAT disk has a limit
        with saving(tmp_path, Source(), keep_last=0) as saves:
            saves._write = lambda folder: save_file(weights, folder / "number")
            saves.snapshot()
            saves.write(4, 0.1)
            saves.snapshot()
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert saves.trouble.startswith("step 4 was not saved ([Errno 27] File too large")
            saves.write(5, 0.1)
        assert steps(tmp_path) == [1, 5]
        (left,) = folder.parent.glob(".trash-*")
        assert f"{left} takes room and cannot be deleted (Device or resource busy)" in caplog.text
        left.rename(folder)


def test_without_a_copy_training_waits_for_the_write(tmp_path):
    with saving(tmp_path, Source(), in_background=False) as saves:
        saves.snapshot()
        saves.write(1, None)
        assert saved(tmp_path) == {1: "0"}


def test_training_goes_on_during_a_write_until_the_next_snapshot(tmp_path):
    """Which waits until the one before is written: a write holds the state of its own."""
    source = Source()
    with saving(tmp_path, source) as saves:
        source.may_write.clear()
        source.number = 1
        saves.snapshot()
        assert not (tmp_path / "checkpoints").exists()  # nothing is written before the logs are
        saves.write(1, 0.5)
        source.number = 2
        assert saved(tmp_path) == {}
        second = threading.Thread(target=saves.snapshot)
        second.start()
        second.join(0.2)
        assert second.is_alive()
        assert source.copied == 1
        source.may_write.set()
        second.join(DEADLINE_S)
        assert saved(tmp_path) == {1: "1"}
        assert source.copied == 2
        saves.write(2, None)
    assert saved(tmp_path) == {1: "1", 2: "2"}
    assert [checkpoint.accuracy for checkpoint in list_checkpoints(tmp_path)] == [0.5, None]


def test_a_checkpoint_that_the_disk_spoils_is_told_and_not_the_latest(
    tmp_path, caplog, monkeypatch
):
    with saving(tmp_path, Source()) as saves:
        saves.snapshot()
        saves.write(1, None)
        saves.snapshot()

        def save_on_a_bad_disk(*arguments: Any, **options: Any) -> Path:
            folder = save_checkpoint(*arguments, **options)
            (folder / "model.bin").write_bytes(b"v" * 1_000)
            return folder

        monkeypatch.setattr(background_save, "save_checkpoint", save_on_a_bad_disk)
        saves.write(2, None)
    words = "step 2 was saved, but its model.bin has other content than was saved"
    assert words in caplog.text
    assert latest(tmp_path).step == 1


class Failing(Source):
    def write_snapshot(self, folder: Path) -> None:
        raise WorkerDied("learner", "its process is gone")


@pytest.mark.parametrize("end", [lambda saves: saves.snapshot(), lambda saves: None])
def test_what_no_disk_explains_is_raised_at_the_next_wait(tmp_path, end):
    def loop() -> None:
        with saving(tmp_path, Failing()) as saves:
            saves.snapshot()
            saves.write(1, None)
            end(saves)

    with pytest.raises(WorkerDied, match="its process is gone"):
        loop()
    assert saved(tmp_path) == {}


def test_an_exception_of_the_loop_waits_for_the_write_and_is_not_hidden_by_its_failure(
    tmp_path, caplog
):
    source = Source()

    def loop(source: Source) -> None:
        with saving(tmp_path, source) as saves:
            saves.snapshot()
            source.may_write.clear()
            saves.write(1, None)
            threading.Timer(0.1, source.may_write.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loop(source)
    assert saved(tmp_path) == {1: "0"}
    with pytest.raises(KeyboardInterrupt):
        loop(Failing())
    assert "the last save failed as well (learner died: its process is gone)" in caplog.text
