"""The model that a night starts from, with real champions of real checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tasks.generate import generate_dataset
from tasks.start import champion_of, champion_to_train
from tests.support.champions import crown


def settings(root: Path, model: Path, **data: object) -> RunConfig:
    return RunConfig.model_validate(
        {
            "storage": {"root": root},
            "model": {"path": str(model)},
            "data": {"train_size": 8, "test_size": 8, "train_batch_size": 4, **data},
            "actor": {"mini_batch_size": 4},
        }
    )


def make_champion(config: RunConfig, model: Path) -> Path:
    """Makes a copy of a model the champion of these settings' problems."""
    run = RunFolder.create(config.model_copy(update={"run_id": "alpha"}))
    save_checkpoint(
        run.path, 5, lambda folder: shutil.copytree(model, folder, dirs_exist_ok=True), 1.0
    )
    return crown(config, run, generate_dataset(config))


def test_before_there_is_a_champion_nothing_is_made(tmp_path: Path, tiny_model_path: Path) -> None:
    folder, why = champion_to_train(settings(tmp_path, tiny_model_path))
    assert folder is None
    assert why.startswith("no champion of countdown in")
    assert list(tmp_path.iterdir()) == []


def test_the_champion_of_the_same_problems_is_gone_on_from(
    tmp_path: Path, tiny_model_path: Path
) -> None:
    config = settings(tmp_path, tiny_model_path)
    checkpoint = make_champion(config, tiny_model_path)
    assert champion_to_train(config) == (
        checkpoint,
        "the champion alpha/step_000005, accuracy 1.000",
    )
    champion = champion_of(config, generate_dataset(config))
    assert champion is not None
    assert champion.current.run_id == "alpha"


def test_a_champion_of_other_problems_may_have_been_trained_on_these(
    tmp_path: Path, tiny_model_path: Path
) -> None:
    make_champion(settings(tmp_path, tiny_model_path), tiny_model_path)
    folder, why = champion_to_train(settings(tmp_path, tiny_model_path, seed=1))
    assert folder is None
    assert "no champion of these problems" in why


def test_a_champion_of_another_size_is_not_taken(tmp_path: Path, tiny_model_path: Path) -> None:
    config = settings(tmp_path, tiny_model_path)
    make_champion(config, tiny_model_path)
    home_made = config.model_copy(update={"model": config.model.model_copy(update={"path": None})})
    folder, why = champion_to_train(home_made)
    assert folder is None
    assert "is not of the size" in why


@pytest.mark.parametrize("what", ["gone", "another"])
def test_a_champion_that_is_not_there_any_more_is_not_taken(
    tmp_path: Path, tiny_model_path: Path, what: str
) -> None:
    config = settings(tmp_path, tiny_model_path)
    checkpoint = make_champion(config, tiny_model_path)
    shutil.rmtree(checkpoint)
    if what == "another":
        save_checkpoint(tmp_path / "runs" / "alpha", 5, lambda folder: (folder / "x").touch(), 1.0)
    assert champion_to_train(config) == (
        None,
        "the champion alpha/step_000005 is gone from the disk",
    )
