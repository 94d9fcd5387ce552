import shutil
from pathlib import Path

import pytest

from flows.settings.compose import compose
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.resources.memory_plan import ModelShape
from rl_core.runs.run_folder import RunFolder
from tasks.base_model import base_model
from tasks.generate import generate_dataset
from tasks.start import champion_of, champion_to_train, next_seed
from tests.support.champions import crown
from tests.support.checkpoint_files import copying

SMALL = {"train_size": 8, "test_size": 8, "train_batch_size": 4}


def settings(root: Path, path: Path, /, **changes: object) -> RunConfig:
    sections = {"storage": {"root": root}, "model": {"path": str(path)}, "data": SMALL}
    return RunConfig.model_validate(sections | {"actor": {"mini_batch_size": 4}} | changes)


def make_champion(config: RunConfig, model: Path) -> Path:
    """Makes a copy of a model the champion of these settings' problems."""
    run = RunFolder.create(config.model_copy(update={"run_id": "alpha"}))
    save_checkpoint(run.path, 5, copying(model), 1.0)
    return crown(config, run, generate_dataset(config))


def test_before_there_is_a_champion_nothing_is_made(tmp_path, tiny_model_path):
    start = champion_to_train(settings(tmp_path, tiny_model_path))
    assert start.folder is None
    assert start.is_as_asked
    assert start.why.startswith("no champion of countdown in")
    assert list(tmp_path.iterdir()) == []


def test_the_champion_of_the_same_problems_is_gone_on_from(tmp_path, tiny_model_path):
    config = settings(tmp_path, tiny_model_path)
    checkpoint = make_champion(config, tiny_model_path)
    start = champion_to_train(config)
    assert start.folder == checkpoint
    assert start.sentence == (
        f"the champion alpha/step_000005, accuracy 1.000, instead of model.path={tiny_model_path}"
    )
    champion = champion_of(config, generate_dataset(config))
    assert champion.current.run_id == "alpha"


@pytest.mark.parametrize("preset", ["quickstart", "gsm8k-toy"])
def test_a_vocabulary_below_the_most_that_a_preset_allows_is_the_size_it_asks_for(tmp_path, preset):
    """The shipped presets ask for more tokens than their tokenizers find."""
    small = ["data.train_size=256", "data.test_size=16", "base_model.steps=1"]
    config = compose([f"preset={preset}", f"storage.root={tmp_path}", *small])
    made = base_model(config, generate_dataset(config))
    asked = config.base_model.vocab_size
    assert ModelShape.from_folder(made).vocab_size < asked
    checkpoint = make_champion(config, made)
    assert champion_to_train(config).folder == checkpoint
    shutil.rmtree(made)  # another machine may not have it
    assert champion_to_train(config).folder == checkpoint
    smaller = config.base_model.model_copy(update={"vocab_size": asked // 2})
    start = champion_to_train(config.model_copy(update={"base_model": smaller}))
    assert start.folder is None
    assert f"vocab_size {ModelShape.from_folder(checkpoint).vocab_size} instead of" in start.why


def _another(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint)
    save_checkpoint(checkpoint.parents[1], 5, lambda folder: (folder / "x").touch(), 1.0)


def _no_champion(checkpoint: Path) -> None:
    for file in (checkpoint.parents[3] / "champions").glob("*.json"):
        file.write_text("{")


@pytest.mark.parametrize(
    ("harm", "asked", "words"),
    [
        (shutil.rmtree, {}, "the champion alpha/step_000005 is gone from the disk"),
        (_another, {}, "is no longer the checkpoint that was promoted: its files changed"),
        (_no_champion, {}, "does not name a champion: delete it"),
        # One of other problems may have been trained on the tests of these.
        (None, {"data": SMALL | {"seed": 1}}, "no champion of these test problems"),
        (None, {"model": {}}, "is not of the size that the settings ask for: "),
    ],
)
def test_why_a_champion_cannot_be_used(tmp_path, tiny_model_path, harm, asked, words):
    champion = make_champion(settings(tmp_path, tiny_model_path), tiny_model_path)
    if harm is not None:
        harm(champion)
    start = champion_to_train(settings(tmp_path, tiny_model_path, **asked))
    assert start.folder is None
    assert not start.is_as_asked
    assert words in start.sentence


@pytest.mark.parametrize(
    ("nights", "seed"),
    [
        ([], 7),
        ([(7, "finished"), (8, "failed")], 9),
        ([(7, "finished"), (8, "interrupted")], 8),  # which the next night may continue
        ([(3, "finished")], 7),
    ],
)
def test_each_night_has_a_seed_of_its_own(tmp_path, tiny_model_path, nights, seed):
    config = settings(tmp_path, tiny_model_path).model_copy(update={"seed": 7})
    by_hand = RunFolder.create(config.model_copy(update={"run_id": "by-hand", "seed": 99}))
    by_hand.update(status="finished")
    (tmp_path / "runs" / "damaged").mkdir()
    (tmp_path / "runs" / "damaged" / "run.json").write_text("{")
    for number, (before, status) in enumerate(nights):
        run = RunFolder.create(config.model_copy(update={"run_id": f"n{number}", "seed": before}))
        run.update(status=status, night="2026-11-25T01:00:00+00:00")
    assert next_seed(config) == seed
