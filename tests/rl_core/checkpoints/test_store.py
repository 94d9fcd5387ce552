import errno
import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_core.checkpoints.pruning import prune
from rl_core.checkpoints.store import best, find_damage, latest, list_checkpoints, save_checkpoint
from tests.support.checkpoint_files import DAMAGES, hidden, pointers, save_steps, steps, writer
from tests.support.faults import kills_at_each_event, leave_free


def test_the_manifest_lists_every_file_with_size_and_checksum(tmp_path):
    folder = save_checkpoint(tmp_path, 100, writer(size=12, fill=b"a"), 0.25, score=0.3)
    assert folder == tmp_path / "checkpoints" / "step_000100"
    manifest = json.loads((folder / "checkpoint.json").read_text())
    assert manifest.pop("created_at").endswith("+00:00")
    assert manifest == {
        "step": 100,
        "accuracy": 0.25,
        "score": 0.3,
        "base_sha256": None,
        "total_bytes": 12,
        "files": [
            {"path": "model.bin", "bytes": 2, "crc32": "078a19d7"},
            {"path": "trainer/state.bin", "bytes": 10, "crc32": "4c11cdf0"},
        ],
    }


@pytest.mark.parametrize(
    "tested",
    [  # accuracy, score, and which step is the best then
        [(None, None, 1), (0.3, None, 2), (0.3, None, 2), (None, None, 2), (0.31, None, 5)],
        [(0.0, None, 1), (0.0, 0.2, 2), (0.0, 0.5, 3), (0.0, 0.5, 3), (0.1, 0.3, 5)],
    ],
    ids=["a strictly higher accuracy", "a score where nothing is correct"],
)
def test_best_moves_only_to_a_better_one(tmp_path, tested):
    for step, (accuracy, score, expected) in enumerate(tested, start=1):
        save_checkpoint(tmp_path, step, writer(), accuracy, score=score)
        assert pointers(tmp_path) == (f"step_{step:06d}", f"step_{expected:06d}")
        assert best(tmp_path).step == expected
    assert steps(tmp_path) == [1, 2, 3, 4, 5]


def test_saving_a_step_again_replaces_it(tmp_path):
    save_checkpoint(tmp_path, 5, writer(fill=b"a"), 0.9)
    save_checkpoint(tmp_path, 5, writer(fill=b"b"), 0.1)
    (checkpoint,) = list_checkpoints(tmp_path)
    assert (checkpoint.accuracy, find_damage(checkpoint.path)) == (0.1, None)
    assert (checkpoint.path / "trainer" / "state.bin").read_bytes() == b"b" * 10
    assert hidden(tmp_path) == []


def test_nothing_is_there_before_the_first_save(tmp_path):
    assert list_checkpoints(tmp_path) == []
    assert latest(tmp_path) is None
    assert best(tmp_path) is None
    assert prune(tmp_path, keep_last=1, quota_bytes=1) == []
    assert prune(tmp_path, incoming_bytes=1, keep_last=1, quota_bytes=1) == []
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_skipped_in_words_and_never_costs_a_sound_one(tmp_path, caplog, damage):
    save_steps(tmp_path, {1: 0.5, 2: 0.1, 3: 0.1})
    words = damage(save_checkpoint(tmp_path, 4, writer(), 0.1))
    assert latest(tmp_path).step == 3
    assert f"checkpoint step_000004 is damaged ({words}): using the one before it" in caplog.text
    # Best, the newest beside it, latest, and evidence.
    prune(tmp_path, keep_last=1, quota_bytes=10**9)
    assert steps(tmp_path)[:3] == [1, 2, 3]
    assert (tmp_path / "checkpoints" / "step_000004").exists()
    prune(tmp_path, keep_last=0, quota_bytes=1)
    assert latest(tmp_path).step == 3
    assert 1 in steps(tmp_path)


def write_with_safetensors(folder: Path) -> None:
    save_file({"weight": np.zeros(150_000, np.float32)}, folder / "model.safetensors")


def write_with_torch(folder: Path) -> None:  # as SFT keeps what it has learned so far
    import torch

    torch.save({"weight": torch.zeros(150_000)}, folder / "state.pt")


@pytest.mark.parametrize("write", [write_with_safetensors, write_with_torch, writer(size=600_000)])
def test_a_full_disk_is_an_oserror_whoever_writes(small_disk, write):
    save_checkpoint(small_disk, 1, write, 0.5)
    leave_free(small_disk, 300_000)
    with pytest.raises(OSError, match="No space left") as caught:
        save_checkpoint(small_disk, 2, write, 0.9)
    assert caught.value.errno == errno.ENOSPC
    assert latest(small_disk).step == 1
    assert pointers(small_disk) == ("step_000001", "step_000001")
    assert hidden(small_disk) == []


@pytest.mark.slow
def test_a_save_killed_at_any_system_event_is_whole_or_absent(small_disk):
    outcomes = []
    for run, kill in kills_at_each_event(small_disk, more_than=15):
        save_checkpoint(run, 1, writer(), 0.5)
        kill(partial(save_checkpoint, run, 2, writer(), 0.9))
        outcomes.append(latest(run).step)
        assert steps(run) == list(range(1, outcomes[-1] + 1))
        pointers(run)
        save_checkpoint(run, 3, writer(), 0.1)
        assert hidden(run) == []
        assert pointers(run) == ("step_000003", best(run).path.name)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {1, 2}
