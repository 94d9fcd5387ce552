"""A run whose `best` teaches another one, from Python: both loops, and what is recorded."""

import shutil
from pathlib import Path

import pytest

from rl_core import train
from rl_core.config.run import RunConfig
from rl_core.data.dataset import read_problems
from rl_core.loop import steps
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from rl_core.types import ScoredText
from tests.rl_core.test_api import SMALL, letters, rows

TAUGHT = {
    "algorithm.estimator": "distill",
    "algorithm.group_size": 2,
    "teacher.path": "strong/best",
    "trainer.test_problems": 2,
}


def test_the_best_of_a_run_teaches_its_base(tiny_model_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problems = rows(10)
    train(
        model=tiny_model_path, problems=problems, reward=letters, steps=3,
        settings=SMALL | {"algorithm.outcome_gate": False}, run_id="strong", root=tmp_path,
    )  # fmt: skip
    taught = train(
        model=tiny_model_path, problems=problems, reward=letters, steps=3, settings=SMALL | TAUGHT,
        run_id="taught", root=tmp_path,
    )  # fmt: skip
    run = RunFolder(taught.folder)
    checkpoint = (tmp_path / "runs/strong/checkpoints/best").resolve()
    assert run.read().teacher == {"strong/best": str(checkpoint)}
    distances = taught.metrics["teacher/kl"].drop_nulls().to_list()
    assert len(distances) == 3
    assert all(distances)  # the mean of few tokens may be negative, never 0
    # The loop on one page has the same teacher.
    config = RunConfig.model_validate(read_settings(taught.folder))
    data = Path(run.read().data)
    asked = read_problems(data / "train.parquet")
    wrong = ScoredText(0.0, "wrong_value", None)  # no reward counts
    first = next(iter(steps(config, tiny_model_path, asked, lambda text, problem: wrong)))
    assert first.metrics["teacher/kl"] == pytest.approx(distances[0], rel=1e-4)
    # A run that continues has the teacher that it began with, or finds another under that name.
    shutil.rmtree(tmp_path / "runs" / "strong")
    with pytest.raises(ValueError, match=r"^teacher.path=strong/best"):
        train(
            model=tiny_model_path, problems=problems, reward=letters, steps=4,
            settings=SMALL | TAUGHT, run_id="taught", root=tmp_path,
        )  # fmt: skip
