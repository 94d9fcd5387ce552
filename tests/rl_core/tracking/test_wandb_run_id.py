import shutil
from pathlib import Path

import pytest

from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.checkpoints.store import latest
from rl_core.config.operations import CheckpointsConfig
from rl_core.tracking.wandb_tracker import (
    TRACKING,
    copy_wandb_run_id,
    keep_wandb_run_id,
    wandb_run_id,
)


def save(run: Path, step: int) -> Path:
    run.mkdir(exist_ok=True)

    def write(folder: Path) -> None:
        (folder / "model.bin").write_bytes(b"w")
        copy_wandb_run_id(run, folder)

    with BackgroundSave(CheckpointsConfig(), run, lambda: 2, write) as saves:
        saves.snapshot()
        saves.write(step, None)
    checkpoint = latest(run)  # verified: the manifest knows the name's file
    assert checkpoint.step == step
    return checkpoint.path


def test_a_checkpoint_takes_the_name_with_it_into_another_run(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert wandb_run_id(first) == "first"
    first.mkdir()
    keep_wandb_run_id(first, "first-1a2b")
    copied = second / "checkpoints" / "step_000005"
    shutil.copytree(save(first, 5), copied)
    assert wandb_run_id(second) == "second"
    assert wandb_run_id(second, copied) == "first-1a2b"
    keep_wandb_run_id(second, wandb_run_id(second, copied))
    assert wandb_run_id(second) == "first-1a2b"


def test_what_the_run_folder_says_is_newer_than_what_its_checkpoint_says(tmp_path):
    keep_wandb_run_id(tmp_path, "old")
    checkpoint = save(tmp_path, 1)
    keep_wandb_run_id(tmp_path, "new")
    assert wandb_run_id(tmp_path, checkpoint) == "new"


def test_a_checkpoint_without_a_name_is_as_it_was(tmp_path):
    run = tmp_path / "run"
    checkpoint = save(run, 1)
    assert [path.name for path in checkpoint.rglob(TRACKING)] == []
    assert wandb_run_id(run, checkpoint) == "run"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"wandb_run_id": 3}', '{"wandb_run_id": "a/b"}'])
def test_a_file_without_a_name_is_no_name(tmp_path, text):
    (tmp_path / TRACKING).write_text(text)
    assert wandb_run_id(tmp_path) == tmp_path.name
