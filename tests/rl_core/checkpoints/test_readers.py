import contextlib
import subprocess
from io import BufferedReader
from pathlib import Path
from typing import Any

import pytest

from rl_core.checkpoints import pruning
from rl_core.checkpoints.manifest import Manifest, find_damage, read_manifest
from rl_core.checkpoints.pruning import PruningDecision, plan_pruning, prune
from rl_core.checkpoints.store import reading_latest, save_checkpoint
from rl_core.system.atomic import alone_in, reading, remove_folder
from rl_core.system.plain_files import open_plain
from tests.support.checkpoint_files import save_steps, steps, writer
from tests.support.programs import begun

READER = """
import sys, time
from pathlib import Path
from rl_core.system.atomic import reading
with reading(Path(sys.argv[1])):
    print("reading", flush=True)
    time.sleep(600)
"""


def test_what_another_process_reads_stays_until_that_process_is_gone(tmp_path):
    save_steps(tmp_path, dict.fromkeys(range(1, 5), 0.1))
    with begun(READER, tmp_path / "checkpoints" / "step_000002") as reader:
        assert reader.stdout.readline() == "reading\n"
        decisions = prune(tmp_path, keep_last=0, quota_bytes=1)
        assert steps(tmp_path) == [1, 2, 4]
        kept = {d.checkpoint.step: d.reason for d in decisions if d.keep}
        assert kept == {4: "latest", 2: "being read by another process", 1: "best"}
    prune(tmp_path, keep_last=0, quota_bytes=1)
    assert steps(tmp_path) == [1, 4]


def test_a_reader_that_comes_between_plan_and_deletion_is_heard(tmp_path, monkeypatch):
    save_steps(tmp_path, dict.fromkeys(range(1, 4), 0.1))
    with contextlib.ExitStack() as held:

        def plan_then_read(*arguments: Any, **options: Any) -> list[PruningDecision]:
            decisions = plan_pruning(*arguments, **options)
            held.enter_context(reading(tmp_path / "checkpoints" / "step_000002"))
            return decisions

        monkeypatch.setattr(pruning, "plan_pruning", plan_then_read)
        decisions = prune(tmp_path, keep_last=0, quota_bytes=1)
    kept = {d.checkpoint.step: d.reason for d in decisions if d.keep}
    assert kept[2] == "being read by another process"
    assert steps(tmp_path) == [1, 2, 3]


def test_what_was_removed_before_it_could_be_read_is_not_found(tmp_path):
    save_steps(tmp_path, {1: 0.1, 2: 0.2})
    path = tmp_path / "checkpoints" / "step_000001"
    code = f"""
from pathlib import Path
from rl_core.system.atomic import reading
print("ready", flush=True)
try:
    with reading(Path({str(path)!r})):
        print("read")
except FileNotFoundError:
    print("gone")
"""
    with contextlib.ExitStack() as started:
        with alone_in(path, wait=True):
            reader = started.enter_context(begun(code))
            assert reader.stdout.readline() == "ready\n"
            with pytest.raises(subprocess.TimeoutExpired):
                reader.wait(0.5)
            remove_folder(path)
        assert reader.stdout.readline() == "gone\n"


def test_latest_is_held_while_it_is_read_and_pruned_after(tmp_path):
    save_checkpoint(tmp_path, 1, writer(), 0.1)
    with reading_latest(tmp_path) as checkpoint:
        save_checkpoint(tmp_path, 2, writer(), 0.9)
        prune(tmp_path, keep_last=0, quota_bytes=1)
        assert steps(tmp_path) == [1, 2]
        assert find_damage(checkpoint.path) is None
    prune(tmp_path, keep_last=0, quota_bytes=1)
    assert steps(tmp_path) == [2]


def test_a_checkpoint_that_is_pruned_while_it_is_listed_ends_nobody(tmp_path, monkeypatch):
    saved = save_checkpoint(tmp_path, 5, lambda folder: (folder / "weights").touch(), 0.5)

    def open_and_prune(path: Path, *, below: Path) -> BufferedReader:
        opened = open_plain(path, below=below)
        path.unlink()
        return opened

    monkeypatch.setattr("rl_core.checkpoints.manifest.open_plain", open_and_prune)
    assert isinstance(read_manifest(saved), Manifest)
    assert read_manifest(saved) == "weights is missing"
