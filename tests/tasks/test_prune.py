from pathlib import Path

from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.operations import CheckpointsConfig, StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tasks.prune import LEFT_ALONE, prune_run, prune_runs
from tasks.queries.run_tables import bytes_by_kind
from tests.support.checkpoint_files import steps, writer
from tests.support.runs import new_run


def run_with_checkpoints(root: Path, accuracies: dict[int, float | None]) -> RunFolder:
    run = RunFolder(root / "runs" / "r")
    for step, accuracy in accuracies.items():
        save_checkpoint(run.path, step, writer(), accuracy)
    return run


def settings(root: Path, *, keep_last: int, quota_bytes: int) -> RunConfig:
    limits = CheckpointsConfig(keep_last=keep_last, quota_bytes=quota_bytes)
    return RunConfig(storage=StorageConfig(root=root, min_free_gib=0), checkpoints=limits)


def test_a_row_per_checkpoint_says_what_was_done_and_why(tmp_path, caplog):
    caplog.set_level("INFO", logger="tasks.prune")
    run = run_with_checkpoints(tmp_path, {10: 0.5, 20: 0.1, 30: None, 40: 0.2})
    config = settings(tmp_path, keep_last=1, quota_bytes=10_000)
    dry = prune_run(config, run, dry_run=True)
    assert steps(run.path) == [10, 20, 30, 40]
    assert "1 of 4 checkpoints would be deleted" in caplog.text
    rows = prune_run(config, run)
    decisions = {"kept": "kept", "deleted": "would be deleted"}
    assert [row | {"decision": decisions[row["decision"]]} for row in rows] == dry
    assert [(r["what"], r["decision"], r["why"], r["bytes"], r["accuracy"]) for r in rows] == [
        ("step_000040", "kept", "latest", 1_000, 0.2),
        ("step_000030", "kept", "one of the newest 1 besides latest and best", 1_000, None),
        ("step_000020", "deleted", "older than the newest 1 besides latest and best", 1_000, 0.1),
        ("step_000010", "kept", "best", 1_000, 0.5),
    ]
    assert steps(run.path) == [10, 30, 40]
    assert "1 of 4 checkpoints deleted, " in caplog.text


def test_the_oldest_rollout_files_are_deleted(tmp_path):
    run = run_with_checkpoints(tmp_path, {10: 0.5})
    sizes = [run.rollouts.write(step, 0, [], {}).stat().st_size for step in range(1, 5)]
    limits = StorageConfig(root=tmp_path, min_free_gib=0, rollout_quota_bytes=sum(sizes[1:]))
    rows = prune_run(RunConfig(storage=limits), run, dry_run=True)
    assert [(row["what"], row["decision"], row["bytes"]) for row in rows] == [
        ("step_000010", "kept", 1_000),
        ("rollouts/step_000001.parquet", "would be deleted", sizes[0]),
    ]
    assert len(list(run.rollouts.folder.iterdir())) == 4
    assert [row["decision"] for row in prune_run(RunConfig(storage=limits), run)] == [
        "kept",
        "deleted",
    ]
    left = sorted(path.name for path in run.rollouts.folder.iterdir())
    assert left == [f"step_00000{step}.parquet" for step in (2, 3, 4)]
    assert bytes_by_kind(run.path)["rollouts"] == sum(sizes[1:])


def test_one_run_that_cannot_be_pruned_does_not_keep_the_others(tmp_path):
    config = settings(tmp_path, keep_last=0, quota_bytes=10_000)
    going, over = (new_run(tmp_path, name) for name in ("going", "over"))
    for run in (going, over):
        for step in (1, 2, 3):
            save_checkpoint(run.path, step, writer(), 0.1)
    over.update(status="finished")
    runs = [("its settings are gone", RunFolder(tmp_path / "runs" / "odd")), (config, going)]
    rows = prune_runs([*runs, (config, over)], dry_run=False)
    assert [(row["run"], row["what"], row["decision"]) for row in rows] == [
        ("odd", "all", LEFT_ALONE),
        ("going", "all", LEFT_ALONE),
        ("over", "step_000003", "kept"),
        ("over", "step_000002", "deleted"),
        ("over", "step_000001", "kept"),
    ]
    assert [row["why"] for row in rows[:2]] == [
        "its settings are gone",
        "in progress: it prunes itself",
    ]
    assert steps(going.path) == [1, 2, 3]
