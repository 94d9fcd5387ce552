"""A run's checkpoint against the champion, from evaluation to pointer, with knowing engines."""

import json
import shutil
from pathlib import Path

import pytest

from rl_core.checkpoints.champion import all_champions
from rl_core.checkpoints.manifest import model_digest
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tasks.evaluate import evaluate_with
from tasks.promote import champion_table, promote_run
from tasks.queries.checkpoint_names import find_model
from tests.support.checkpoint_files import copying
from tests.support.held_out import AnsweringEngines, write_test_split
from tests.tasks.test_evaluate import settings

NUM_PROBLEMS = 12


def write_data(folder: Path) -> Path:
    return write_test_split(folder, [f"{i}:" for i in range(NUM_PROBLEMS)])


class Engines(AnsweringEngines):
    """Solve as many problems as the loaded folder's `skill` says; the base model two."""

    skill = 2

    def load_weights(self, folder: Path) -> None:
        if (folder / "misshapen").exists():
            raise ValueError("weight update refused, 1 of 26 tensors misshapen")
        self.loaded.append(f"{folder.parent.parent.name}/{folder.name}")
        self.skill = int((folder / "skill").read_text())

    def answer(self, prompt: str, position: int, *, sampled: bool) -> str:
        index = int(prompt.rstrip(":"))
        return f"<answer>2 + {index}</answer>" if index < self.skill else "no"


class Place:
    """A storage root whose runs are evaluated and promoted in a line."""

    def __init__(self, root: Path, model_path: Path) -> None:
        self.root, self.model_path = root / "out", model_path
        self.data = write_data(root / "data")

    def config(self, run_id: str, **evaluation: int) -> RunConfig:
        changes = {"data": {"max_response_length": 32}, "run_id": run_id}
        return settings(self.root, evaluation={"samples_per_problem": 1} | evaluation, **changes)

    def trained(self, run_id: str, skill: int) -> RunFolder:
        run = RunFolder.create(self.config(run_id))
        run.update(model=str(self.model_path), data=str(self.data))

        write = copying(self.model_path, lambda new: (new / "skill").write_text(str(skill)))
        save_checkpoint(run.path, 7, write, 0.5)
        return run

    def ends(self, run: RunFolder, **evaluation: int) -> tuple[list[str], str]:
        """Evaluates and promotes; returns what was loaded, and the outcome."""
        config, engines = self.config(run.run_id, **evaluation), Engines(self.model_path)
        evaluate_with(engines, config, run, self.data, self.model_path)
        promotion = promote_run(config, run, self.data, self.model_path)
        assert run.read().champion == promotion.reason
        return engines.loaded, promotion.reason

    def champion(self) -> str:
        (champion,) = all_champions(self.root)
        return champion.current.name


@pytest.fixture
def place(tmp_path: Path, tiny_model_path: Path) -> Place:
    return Place(tmp_path, tiny_model_path)


def test_night_after_night_only_the_better_run_is_promoted(place, caplog):
    caplog.set_level("INFO")
    loaded, outcome = place.ends(place.trained("mon", 4))
    assert loaded == ["mon/step_000007"]
    assert outcome.startswith("not promoted: cannot tell from its base model")
    assert all_champions(place.root) == []
    with pytest.raises(ValueError, match="no champion in"):
        find_model("champion", place.root)

    (larger := place.root.parent / "larger disk").mkdir()
    (place.root / "runs/tue").symlink_to(larger)
    loaded, outcome = place.ends(place.trained("tue", 8))
    assert outcome.startswith("promoted: better than its base model (p = 0.031, 6 problems won")
    assert f"champion: {outcome}" in caplog.text
    assert place.champion() == "tue/step_000007"

    # Its rows lie there: the champion is not asked again.
    loaded, outcome = place.ends(place.trained("wed", 9))
    assert loaded == ["wed/step_000007"]
    assert outcome.startswith("not promoted: cannot tell from the champion tue/step_000007 (p = 1")
    loaded, outcome = place.ends(place.trained("thu", 1))
    assert outcome.startswith("not promoted: worse than the champion tue/step_000007")
    assert place.champion() == "tue/step_000007"
    model, run = find_model("champion", place.root), RunFolder(place.root / "runs/tue")
    assert (model.name, model.step, model.run) == ("tue/step_000007", 7, run)
    assert model.folder == place.root / "runs/tue/checkpoints/step_000007"
    assert find_model("champion", place.root, env="countdown") == model
    with pytest.raises(ValueError, match="no champion of env=gsm8k"):
        find_model("champion", place.root, env="gsm8k")

    shutil.rmtree(run.path.resolve())
    with pytest.raises(ValueError, match="the champion tue/step_000007 is gone from"):
        find_model("champion", place.root)
    _, outcome = place.ends(place.trained("fri", 9))
    assert outcome.startswith("promoted: better than its base model")
    assert outcome.endswith("; the champion tue/step_000007 is gone from the disk")


def test_the_champion_is_asked_anew_where_the_settings_are_others(place):
    place.ends(place.trained("mon", 8))
    loaded, outcome = place.ends(place.trained("tue", 12), samples_per_problem=2)
    assert loaded == ["tue/step_000007", "mon/step_000007"]
    assert "champion mon/step_000007 (p = 0.12, 4 problems won and 0 lost of 12)" in outcome
    for file in (place.root / "evaluations").glob("mon-step_000007-*"):
        file.unlink()
    loaded, again = place.ends(RunFolder(place.root / "runs" / "tue"), samples_per_problem=2)
    assert (loaded, again) == (["mon/step_000007"], outcome)
    loaded, outcome = place.ends(RunFolder(place.root / "runs" / "tue"), max_problems=9)
    assert loaded == ["tue/step_000007", "mon/step_000007"]
    assert "1 problems won and 0 lost of 9" in outcome


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "misshapen").touch(), "tensors misshapen"),
        (
            lambda folder: (folder / "tokenizer.json").write_text("{}"),
            "has another tokenizer: it is not evaluated again",
        ),
    ],
)
def test_a_champion_that_these_engines_cannot_run_stays(place, caplog, spoil, words):
    run = place.trained("mon", 8)
    place.ends(run)
    (champion,) = all_champions(place.root)
    folder = place.root / champion.current.checkpoint
    # As if it had been trained from another model: the pointer names the folder as it is now.
    save_checkpoint(run.path, 7, copying(place.model_path, spoil), 0.5)
    file = next((place.root / "champions").glob("countdown-*.json"))
    named = json.loads(file.read_text())
    named["current"]["model_digest"] = model_digest(folder)
    file.write_text(json.dumps(named))
    loaded, outcome = place.ends(place.trained("tue", 12))
    assert loaded == ["tue/step_000007"]
    assert words in caplog.text
    why = "the champion mon/step_000007 could not be asked the same problems"
    assert outcome == f"not promoted: {why}"
    assert place.champion() == "mon/step_000007"


def test_the_table_shows_who_reigned(place):
    for name, skill in (("mon", 8), ("tue", 12)):
        run = place.trained(name, skill)
        place.ends(run)
    rows = champion_table(promote_run(place.config("tue"), run, place.data, place.model_path))
    assert [(row["checkpoint"], row["accuracy"], row["problems"]) for row in rows] == [
        ("mon/step_000007", "0.667", 12)
    ]
    fresh = RunFolder.create(place.config("wed"))
    promotion = promote_run(place.config("wed"), fresh, place.data, place.model_path)
    assert promotion.reason == "not promoted: the run has no checkpoint"
    assert champion_table(promotion) == []
