"""A real learner's checkpoints on a real disk that is full: at each byte, file and flush of a save.

Training's numbers stay, the last good checkpoint resumes, and no half of anything is left.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from rl_core.batch import TrainBatch
from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.checkpoints.store import latest
from rl_core.config.operations import CheckpointsConfig
from rl_core.learner.learner import Learner
from rl_core.system.disk_reserve import RESERVE, RESERVE_BYTES, hold_reserve, write_last_words
from rl_core.system.words import disk_size
from tests.support.checkpoint_files import hidden, steps
from tests.support.faults import leave_files, leave_free, mounted_small_disk
from tests.support.learners import all_weights, assert_bitwise_equal, without_timings

PAGE = 4096


@dataclass
class Trained:
    """A learner after two steps, what a save of it takes, and what its third step gives."""

    learner: Learner
    size: int
    resume: Callable[[Path], Learner]
    step_three: TrainBatch
    metrics_of_step_three: dict[str, float]


@pytest.fixture(scope="module")
def trained(tiny_model_path: Path, make_batch: Any, settings: Any) -> Trained:
    def after_two_steps() -> Learner:
        torch.manual_seed(1)
        learner = Learner(settings(), tiny_model_path)
        learner.learn(make_batch(1))
        learner.learn(make_batch(2))
        return learner

    undisturbed, _ = after_two_steps().learn(make_batch(3))
    learner = after_two_steps()
    return Trained(
        learner,
        learner.snapshot(),
        lambda folder: Learner(settings(), tiny_model_path, resume_from=folder),
        make_batch(3),
        without_timings(undisturbed),
    )


@pytest.fixture
def disk(tmp_path: Path, trained: Trained) -> Iterator[Path]:
    """A disk with room for five checkpoints."""
    with mounted_small_disk(tmp_path, 5 * trained.size // PAGE * PAGE) as folder:
        yield folder


def save(run: Path, source: Any, step: int, accuracy: float | None = None, **kept: Any) -> Any:
    """Saves as a run does, and returns the saver."""
    with BackgroundSave(
        CheckpointsConfig(**kept), run, source.snapshot, source.write_snapshot
    ) as saves:
        saves.snapshot()
        saves.write(step, accuracy)
    return saves


def test_the_bytes_of_a_save_are_known_before_it_and_a_little_above(tmp_path, trained):
    trained.learner.save(tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    written = sum(p.stat().st_size for p in files)
    with_blocks = sum(-p.stat().st_size % PAGE + p.stat().st_size for p in files)
    assert with_blocks < trained.size < written * 1.02 + 2**17


def check_step_four(run: Path, trained: Trained, before: list[bool]) -> bool:
    """Says whether step 4 was saved, and removes it; a first outcome is resumed from."""
    is_saved = steps(run) == [2, 4]
    assert is_saved or steps(run) == [2]
    assert hidden(run) == []
    path = run / "checkpoints" / "step_000004"
    if is_saved not in before:
        found = latest(run)
        assert found.step == (4 if is_saved else 2)
        assert_bitwise_equal(all_weights(trained.resume(found.path)), all_weights(trained.learner))
    if is_saved and True not in before:
        model = transformers.AutoModelForCausalLM.from_pretrained(path)
        assert torch.equal(model.lm_head.weight, trained.learner.models.actor.lm_head.weight)
    before.append(is_saved)
    shutil.rmtree(path, ignore_errors=True)
    return is_saved


@pytest.mark.chaos
def test_a_disk_full_at_any_byte_of_a_save(disk, trained, survived):
    """From no room at all to room for everything."""
    save(disk, trained.learner, 2)
    saved: list[bool] = []
    for eighth in range(11):
        leave_free(disk, trained.size * eighth // 8 // PAGE * PAGE)
        saves = save(disk, trained.learner, 4, 0.5)
        assert (saves.trouble is None) == check_step_four(disk, trained, saved)
        newest = "step_000004" if saved[-1] else "step_000002"
        assert (disk / "checkpoints" / "latest").readlink() == Path(newest)
    assert saved == sorted(saved)
    assert set(saved) == {False, True}
    survived("ENOSPC", "any byte of a save")


@pytest.mark.chaos
def test_a_disk_full_at_any_file_of_a_save(disk, trained, survived):
    """The folder, config, weights, tokenizer, state, manifest and pointers, one after the other."""
    save(disk, trained.learner, 2)
    saved: list[bool] = []
    for num_files in range(16):
        leave_files(disk, num_files)
        save(disk, trained.learner, 4, 0.5)
        leave_files(disk, 100)
        check_step_four(disk, trained, saved)
    assert (saved[0], saved[-1]) == (False, True)
    survived("ENOSPC", "any file of a save")


@pytest.mark.chaos
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_full_at_any_flush_of_a_save(tmp_path, trained, monkeypatch, code, survived):
    """The one fault that no small disk shows: a file system that finds room missing late."""
    save(tmp_path, trained.learner, 2)
    flush = os.fsync
    saved: list[bool] = []
    for failing in range(1, 40):
        seen = iter(range(1, 10_000))

        def fail_once(descriptor: int, seen: Iterator[int] = seen, failing: int = failing) -> None:
            if next(seen) == failing:
                raise OSError(code, os.strerror(code))
            flush(descriptor)

        monkeypatch.setattr(os, "fsync", fail_once)
        save(tmp_path, trained.learner, 4)
        monkeypatch.setattr(os, "fsync", flush)
        check_step_four(tmp_path, trained, saved)
        if next(seen) <= failing:  # the save has fewer
            break
    assert failing > 10
    assert saved[-1]
    survived("ENOSPC", f"any flush of a save ({errno.errorcode[code]})")


@pytest.mark.chaos
def test_training_goes_on_with_the_same_numbers_and_the_next_save_tries_again(
    disk, trained, caplog, survived
):
    whole = trained.size
    with BackgroundSave(
        CheckpointsConfig(), disk, trained.learner.snapshot, trained.learner.write_snapshot
    ) as saves:
        saves.snapshot()
        saves.write(2, 0.5)
        saves.snapshot()
        leave_free(disk, PAGE)
        saves.write(3, 0.6)
        metrics, _ = trained.learner.learn(trained.step_three)
        saves.snapshot()
        said = saves.trouble
        leave_free(disk, 2 * whole)
        saves.write(4, 0.7)
    assert without_timings(metrics) == trained.metrics_of_step_three
    assert said.startswith("step 3 was not saved ([Errno 28] No space left on device")
    needed = f"a checkpoint takes {disk_size(whole)}, {disk_size(PAGE)} are free"
    assert f"{needed}, a resume would continue from step 2. Delete other runs" in said
    assert said in caplog.text
    assert saves.trouble is None
    assert steps(disk) == [2, 4]
    survived("ENOSPC", "a step beside a save", rows_lost=2 - len(steps(disk)))


@pytest.mark.chaos
def test_all_but_latest_and_best_go_where_a_save_finds_no_room(disk, trained, caplog, survived):
    """The disk fills up while the save is under way, after room was made for it."""
    caplog.set_level("INFO")
    kept = {"keep_last": 9, "quota_bytes": 10**12}
    for step, accuracy in ((1, 0.1), (2, 0.9), (3, 0.2)):
        save(disk, trained.learner, step, accuracy, **kept)
    whole = trained.size

    class Surprised:
        """Somebody else takes the room as soon as the writing begins, once."""

        left = [whole // 4 // PAGE * PAGE]  # noqa: RUF012
        snapshot = trained.learner.snapshot

        def write_snapshot(self, folder: Path) -> None:
            while self.left:
                leave_free(disk, self.left.pop())
            trained.learner.write_snapshot(folder)

    saves = save(disk, Surprised(), 4, 0.3, **kept)
    assert steps(disk) == [2, 3, 4]  # 1 made room for it
    assert saves.trouble is None
    assert "the disk filled up while step 4 was saved" in caplog.text
    assert "step_000001 deleted: older than the newest 0" in caplog.text
    survived("ENOSPC", "a save after room was made", rows_lost=len({2, 3} - set(steps(disk))))


def test_a_save_takes_the_reserve_back_before_it_takes_room(tmp_path, trained):
    whole = trained.size
    with mounted_small_disk(tmp_path, RESERVE_BYTES + 4 * whole // PAGE * PAGE) as disk:
        hold_reserve(disk)
        save(disk, trained.learner, 1)
        leave_free(disk, 0)
        write_last_words(disk, lambda: (disk / "words").write_bytes(b"w"))
        save(disk, trained.learner, 2)  # the reserve's room is none of its business
        assert steps(disk) == [1]
        leave_free(disk, RESERVE_BYTES + whole + 8 * PAGE)
        save(disk, trained.learner, 3)
        assert steps(disk) == [1, 3]
        assert (disk / RESERVE).stat().st_size == RESERVE_BYTES
