from __future__ import annotations

import errno
import itertools
import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.checkpoints import (
    Checkpoint,
    best,
    find_damage,
    latest,
    list_checkpoints,
    make_room,
    plan_pruning,
    prune,
    save_checkpoint,
)
from tests.rl_core.faults import leave_free, mounted_small_disk, run_and_kill_at_event


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted_small_disk(tmp_path) as folder:
        yield folder


def writer(*, size: int = 1_000, fill: bytes = b"w") -> Callable[[Path], None]:
    """Fills a checkpoint like a learner: a model file on top, a state file below."""

    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(fill * (size - 10))
        (folder / "trainer").mkdir()
        (folder / "trainer" / "state.bin").write_bytes(fill * 10)

    return write


def steps(run: Path) -> list[int]:
    return [checkpoint.step for checkpoint in list_checkpoints(run)]


def pointers(run: Path) -> tuple[str, str]:
    folder = run / "checkpoints"
    assert (folder / "latest" / "checkpoint.json").is_file()
    assert (folder / "best" / "checkpoint.json").is_file()
    return str((folder / "latest").readlink()), str((folder / "best").readlink())


def hidden(run: Path) -> list[str]:
    folder = run / "checkpoints"
    return sorted(p.name for p in folder.iterdir() if p.name.startswith((".tmp-", ".trash-")))


def some_checkpoint(step: int, size_bytes: int = 10, accuracy: float | None = None) -> Checkpoint:
    return Checkpoint(Path(f"step_{step:06d}"), step, accuracy, size_bytes, "2026-01-01")


def test_the_manifest_lists_every_file_with_size_and_hash(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, 100, writer(size=12, fill=b"a"), 0.25)
    assert folder == tmp_path / "checkpoints" / "step_000100"
    manifest = json.loads((folder / "checkpoint.json").read_text())
    assert manifest.pop("created_at").endswith("+00:00")
    assert manifest == {
        "step": 100,
        "accuracy": 0.25,
        "total_bytes": 12,
        "files": [
            {
                "path": "model.bin",
                "bytes": 2,
                "sha256": "961b6dd3ede3cb8ecbaacbd68de040cd78eb2ed5889130cceb4c49268ea4d506",
            },
            {
                "path": "trainer/state.bin",
                "bytes": 10,
                "sha256": "bf2cb58a68f684d95a3b78ef8f661c9a4e5b09e82cc8f9cc88cce90528caeb27",
            },
        ],
    }


def test_best_moves_only_to_a_strictly_higher_accuracy(tmp_path: Path) -> None:
    expected_best = {10: 10, 20: 20, 30: 20, 40: 20, 50: 50}
    accuracies = {10: None, 20: 0.3, 30: 0.3, 40: None, 50: 0.31}
    for step, accuracy in accuracies.items():
        save_checkpoint(tmp_path, step, writer(), accuracy)
        assert pointers(tmp_path) == (f"step_{step:06d}", f"step_{expected_best[step]:06d}")
        found = best(tmp_path)
        assert found is not None
        assert found.step == expected_best[step]
    assert steps(tmp_path) == [10, 20, 30, 40, 50]


def test_best_loads_as_a_model_as_it_lies(tmp_path: Path, tiny_model_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    original = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    save_checkpoint(tmp_path, 1, original.save_pretrained, 0.1)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoints" / "best")
    for name, tensor in original.state_dict().items():
        assert (loaded.state_dict()[name] == tensor).all(), name
    modes = {p.stat().st_mode & 0o777 for p in (tmp_path / "checkpoints" / "best").iterdir()}
    assert modes == {0o644}


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, writer(fill=b"a"), 0.9)
    save_checkpoint(tmp_path, 5, writer(fill=b"b"), 0.1)
    (checkpoint,) = list_checkpoints(tmp_path)
    assert checkpoint.accuracy == 0.1
    assert find_damage(checkpoint.path) is None
    assert (checkpoint.path / "trainer" / "state.bin").read_bytes() == b"b" * 10
    assert hidden(tmp_path) == []


def test_nothing_is_there_before_the_first_save(tmp_path: Path) -> None:
    assert list_checkpoints(tmp_path) == []
    assert latest(tmp_path) is None
    assert best(tmp_path) is None
    assert prune(tmp_path, keep_last=1, quota_bytes=1) == []
    assert make_room(tmp_path, None, keep_last=1, quota_bytes=1) == []
    assert not (tmp_path / "checkpoints").exists()


def flip_a_byte(folder: Path) -> str:
    file = folder / "trainer" / "state.bin"
    file.write_bytes(b"v" + file.read_bytes()[1:])
    return "trainer/state.bin has other content than was saved"


def cut_a_file(folder: Path) -> str:
    (folder / "model.bin").write_bytes(b"w" * 5)
    return "model.bin has 5 bytes instead of 990"


def lose_a_file(folder: Path) -> str:
    (folder / "model.bin").unlink()
    return "model.bin is missing"


def lose_the_manifest(folder: Path) -> str:
    (folder / "checkpoint.json").unlink()
    return "checkpoint.json cannot be read: No such file or directory"


def garble_the_manifest(folder: Path) -> str:
    (folder / "checkpoint.json").write_text('{"step": 2')
    return "checkpoint.json is not a manifest"


@pytest.mark.parametrize(
    "damage", [flip_a_byte, cut_a_file, lose_a_file, lose_the_manifest, garble_the_manifest]
)
def test_a_damaged_newest_is_skipped_in_words_and_never_costs_a_sound_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], str]
) -> None:
    save_checkpoint(tmp_path, 1, writer(), 0.5)
    save_checkpoint(tmp_path, 2, writer(), 0.4)
    words = damage(save_checkpoint(tmp_path, 3, writer(), 0.3))
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 2
    assert f"checkpoint step_000003 is damaged ({words}): using the one before it" in caplog.text
    prune(tmp_path, keep_last=0, quota_bytes=1)
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 2
    assert 1 in steps(tmp_path)


def test_a_failed_save_leaves_everything_as_it_was(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, writer(), 0.5)

    def fail(folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"half")
        raise RuntimeError("the learner died")

    with pytest.raises(RuntimeError, match="the learner died"):
        save_checkpoint(tmp_path, 2, fail, 0.9)
    assert steps(tmp_path) == [1]
    assert pointers(tmp_path) == ("step_000001", "step_000001")
    assert hidden(tmp_path) == []


def write_with_safetensors(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(150_000)}, folder / "model.safetensors")


def write_with_torch(folder: Path) -> None:
    import torch

    torch.save({"weight": torch.zeros(150_000)}, folder / "state.pt")


def write_plainly(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"x" * 600_000)


@pytest.mark.parametrize("write", [write_with_safetensors, write_with_torch, write_plainly])
def test_a_full_disk_is_an_oserror_whoever_writes(
    small_disk: Path, write: Callable[[Path], None]
) -> None:
    save_checkpoint(small_disk, 1, write, 0.5)
    leave_free(small_disk, 300_000)
    with pytest.raises(OSError, match="No space left") as caught:
        save_checkpoint(small_disk, 2, write, 0.9)
    assert caught.value.errno == errno.ENOSPC
    found = latest(small_disk)
    assert found is not None
    assert found.step == 1
    assert pointers(small_disk) == ("step_000001", "step_000001")
    assert hidden(small_disk) == []


def test_a_disk_that_fills_at_any_page_of_a_save_costs_only_that_save(small_disk: Path) -> None:
    save_checkpoint(small_disk, 1, writer(size=20_000), 0.5)
    saved = []
    for free_pages in range(16):
        leave_free(small_disk, free_pages * 4096)
        try:
            save_checkpoint(small_disk, 2, writer(size=20_000), 0.9)
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017  both outcomes are right
            saved.append(False)
            assert steps(small_disk) == [1]
            assert pointers(small_disk) == ("step_000001", "step_000001")
        else:
            saved.append(True)
            assert pointers(small_disk) == ("step_000002", "step_000002")
            shutil.rmtree(small_disk / "checkpoints" / "step_000002")
            prune(small_disk, keep_last=0, quota_bytes=1)
        assert hidden(small_disk) == []
        found = latest(small_disk)
        assert found is not None
        assert found.step == 1
    assert saved[0] is False
    assert saved[-1] is True
    assert saved == sorted(saved)


def test_a_save_killed_at_any_system_event_is_whole_or_absent(small_disk: Path) -> None:
    outcomes = []
    for event_number in itertools.count(1):
        run = small_disk / str(event_number)
        save_checkpoint(run, 1, writer(), 0.5)
        killed = run_and_kill_at_event(
            lambda run=run: save_checkpoint(run, 2, writer(), 0.9),  # type: ignore[misc]
            event_number,
        )
        found = latest(run)
        assert found is not None
        outcomes.append(found.step)
        assert steps(run) == list(range(1, found.step + 1))
        pointers(run)
        save_checkpoint(run, 3, writer(), 0.1)
        assert hidden(run) == []
        highest = best(run)
        assert highest is not None
        assert pointers(run) == ("step_000003", highest.path.name)
        shutil.rmtree(run)
        if not killed:
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {1, 2}
    assert len(outcomes) > 15


def test_sigkill_in_mid_save_of_another_process(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from rl_core.checkpoints import save_checkpoint

def write(folder):
    (folder / "model.bin").write_bytes(b"half")
    print(folder.name, flush=True)
    time.sleep(600)

save_checkpoint(Path({str(tmp_path)!r}), 2, write, 0.9)
"""
    save_checkpoint(tmp_path, 1, writer(), 0.5)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    half = process.stdout.readline().strip()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert hidden(tmp_path) == [half]
    assert half.startswith(".tmp-step_000002")
    found = latest(tmp_path)
    assert found is not None
    assert found.step == 1
    save_checkpoint(tmp_path, 2, writer(), 0.9)
    assert hidden(tmp_path) == []
    assert pointers(tmp_path) == ("step_000002", "step_000002")


def test_a_prune_killed_at_any_system_event_leaves_only_whole_checkpoints(small_disk: Path) -> None:
    for event_number in itertools.count(1):
        run = small_disk / str(event_number)
        for step, accuracy in ((1, 0.1), (2, 0.9), (3, 0.2)):
            save_checkpoint(run, step, writer(), accuracy)
        killed = run_and_kill_at_event(
            lambda run=run: prune(run, keep_last=0, quota_bytes=10),  # type: ignore[misc]
            event_number,
        )
        assert {2, 3} <= set(steps(run))
        on_disk = sorted((run / "checkpoints").glob("step_*"))
        assert [find_damage(path) for path in on_disk] == [None] * len(on_disk)
        assert pointers(run) == ("step_000003", "step_000002")
        prune(run, keep_last=0, quota_bytes=10)
        assert steps(run) == [2, 3]
        assert hidden(run) == []
        shutil.rmtree(run)
        if not killed:
            break
    assert event_number > 20


def test_pruning_says_why() -> None:
    checkpoints = [some_checkpoint(step, 1_000_000_000) for step in range(1, 8)]
    decisions = plan_pruning(
        checkpoints, latest_step=7, best_step=2, keep_last=3, quota_bytes=4_500_000_000
    )
    assert [(d.checkpoint.step, d.keep, d.reason) for d in decisions] == [
        (7, True, "latest"),
        (6, True, "number 1 of the newest 3, within the quota"),
        (5, True, "number 2 of the newest 3, within the quota"),
        (4, False, "over the quota of 4.5 GB"),
        (3, False, "over the quota of 4.5 GB"),
        (2, True, "best"),
        (1, False, "over the quota of 4.5 GB"),
    ]
    decisions = plan_pruning(
        checkpoints, latest_step=7, best_step=7, keep_last=1, quota_bytes=10**12
    )
    assert [(d.checkpoint.step, d.reason) for d in decisions if d.keep] == [
        (7, "latest and best"),
        (6, "number 1 of the newest 1, within the quota"),
    ]
    assert {d.reason for d in decisions if not d.keep} == {
        "older than the newest 1 beside latest and best"
    }


@given(
    sizes=st.lists(st.integers(0, 100), min_size=1, max_size=12),
    data=st.data(),
    keep_last=st.integers(0, 6),
    quota_bytes=st.integers(-50, 700),
)
def test_what_stays_is_latest_best_and_the_longest_newest_row_that_fits(
    sizes: list[int], data: st.DataObject, keep_last: int, quota_bytes: int
) -> None:
    checkpoints = [some_checkpoint(step, size) for step, size in enumerate(sizes)]
    newest, highest = (data.draw(st.integers(0, len(sizes) - 1)) for _ in range(2))
    decisions = plan_pruning(
        data.draw(st.permutations(checkpoints)),
        latest_step=newest,
        best_step=highest,
        keep_last=keep_last,
        quota_bytes=quota_bytes,
    )
    assert [d.checkpoint.step for d in decisions] == list(range(len(sizes)))[::-1]
    kept = {d.checkpoint.step for d in decisions if d.keep}
    always = {newest, highest}
    others = [step for step in reversed(range(len(sizes))) if step not in always]
    row = [step for step in others if step in kept]
    assert always <= kept
    assert row == others[: len(row)]
    assert len(row) <= keep_last
    used = sum(sizes[step] for step in kept)
    assert used <= quota_bytes or kept == always
    if len(row) < min(keep_last, len(others)):
        assert used + sizes[others[len(row)]] > quota_bytes


def test_a_dry_run_decides_the_same_and_deletes_nothing(tmp_path: Path) -> None:
    for step in range(1, 6):
        save_checkpoint(tmp_path, step, writer(), 1 / step)
    dry = prune(tmp_path, keep_last=1, quota_bytes=10**9, dry_run=True)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    assert prune(tmp_path, keep_last=1, quota_bytes=10**9) == dry
    assert steps(tmp_path) == [1, 4, 5]
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == [
        ".lock",
        "best",
        "latest",
        "step_000001",
        "step_000004",
        "step_000005",
    ]


def test_room_counts_the_coming_checkpoint_within_the_quota(tmp_path: Path) -> None:
    for step in range(1, 5):
        save_checkpoint(tmp_path, step, writer(size=1_000), 0.5 if step == 1 else 0.1)
    make_room(tmp_path, 2_500, keep_last=9, quota_bytes=5_500)  # 2,500 beside 1, 3 and 4
    assert steps(tmp_path) == [1, 3, 4]
    make_room(tmp_path, 2_500, keep_last=9, quota_bytes=5_499)
    assert steps(tmp_path) == [1, 4]
    save_checkpoint(tmp_path, 5, writer(size=1_000), 0.1)
    make_room(tmp_path, None, keep_last=9, quota_bytes=4_000)  # None: 1,000, as the newest
    assert steps(tmp_path) == [1, 4, 5]
    make_room(tmp_path, None, keep_last=1, quota_bytes=10**9)  # 5 will be the one beside 6
    assert steps(tmp_path) == [1, 5]
    make_room(tmp_path, None, keep_last=0, quota_bytes=1)
    assert steps(tmp_path) == [1, 5]


def test_room_is_made_for_the_free_disk_before_the_save(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for step in range(1, 5):
        save_checkpoint(small_disk, step, writer(size=500_000), 0.5 if step == 2 else 0.1)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(small_disk, 5, writer(size=500_000), 0.1)
    make_room(small_disk, 520_000, keep_last=9, quota_bytes=10**12)
    assert steps(small_disk) == [2, 3, 4]
    save_checkpoint(small_disk, 5, writer(size=500_000), 0.1)
    assert caplog.text == ""
    make_room(small_disk, 1_900_000, keep_last=9, quota_bytes=10**12)
    assert steps(small_disk) == [2, 5]
    assert "the next checkpoint takes about 0.0019 GB but" in caplog.text


def test_a_prune_waits_for_a_save_in_another_process(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from rl_core.checkpoints import prune
print("ready", flush=True)
prune(Path({str(tmp_path)!r}), keep_last=0, quota_bytes=1)
"""
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, writer(), 0.5 if step == 1 else 0.1)
    pruners = []

    def write(folder: Path) -> None:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        pruners.append(process)
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        writer()(folder)

    save_checkpoint(tmp_path, 4, write, 0.1)
    assert pruners[0].wait(60) == 0
    assert steps(tmp_path) == [1, 4]
