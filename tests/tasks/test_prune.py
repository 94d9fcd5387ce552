from __future__ import annotations

from pathlib import Path

import pytest

from rl_core.checkpoints import list_checkpoints, save_checkpoint
from rl_core.config import CheckpointsConfig, RunConfig, StorageConfig
from rl_core.tracking import RunFolder
from tasks.prune import prune_run


def run_with_checkpoints(root: Path, accuracies: dict[int, float | None]) -> RunFolder:
    run = RunFolder(root / "runs" / "r")

    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"x" * 1_000)

    for step, accuracy in accuracies.items():
        save_checkpoint(run.path, step, write, accuracy)
    return run


def settings(root: Path, *, keep_last: int, quota_bytes: int) -> RunConfig:
    limits = CheckpointsConfig(keep_last=keep_last, quota_bytes=quota_bytes)
    return RunConfig(storage=StorageConfig(root=root), checkpoints=limits)


def test_a_row_per_checkpoint_says_what_was_done_and_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="tasks.prune")
    run = run_with_checkpoints(tmp_path, {10: 0.5, 20: 0.1, 30: None, 40: 0.2})
    config = settings(tmp_path, keep_last=1, quota_bytes=10_000)
    dry = prune_run(config, run, dry_run=True)
    assert [c.step for c in list_checkpoints(run.path)] == [10, 20, 30, 40]
    assert "1 of 4 checkpoints would be deleted" in caplog.text
    rows = prune_run(config, run)
    assert rows == dry
    assert [
        (r["checkpoint"], r["decision"], r["why"], r["bytes"], r["accuracy"]) for r in rows
    ] == [
        ("step_000040", "kept", "latest", 1_000, 0.2),
        ("step_000030", "kept", "number 1 of the newest 1, within the quota", 1_000, None),
        ("step_000020", "deleted", "older than the newest 1 beside latest and best", 1_000, 0.1),
        ("step_000010", "kept", "best", 1_000, 0.5),
    ]
    assert [c.step for c in list_checkpoints(run.path)] == [10, 30, 40]
    assert "1 of 4 checkpoints deleted, 0.000 GB" in caplog.text


def test_latest_and_best_stay_above_any_quota(tmp_path: Path) -> None:
    run = run_with_checkpoints(tmp_path, {10: 0.5, 20: 0.1, 30: 0.2})
    rows = prune_run(settings(tmp_path, keep_last=5, quota_bytes=1), run)
    assert [row["decision"] for row in rows] == ["kept", "deleted", "kept"]
    assert rows[1]["why"] == "over the quota of 1e-09 GB"


def test_a_run_without_checkpoints_has_no_rows(tmp_path: Path) -> None:
    config = settings(tmp_path, keep_last=1, quota_bytes=1)
    assert prune_run(config, RunFolder(tmp_path / "runs" / "r")) == []
