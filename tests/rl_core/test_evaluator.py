"""What the engines of a training answer before they go."""

import logging
from pathlib import Path

import pytest

from rl_core.errors import WorkerDied
from rl_core.evaluator import Evaluator, ask_trained, checkpoint_name
from tasks.evaluate import evaluate_run, evaluate_with
from tests.tasks.test_evaluate import PROBLEMS, KnowingEngines, finished_run, settings, write_data


class TrainingEngines(KnowingEngines):
    """Engines that hold the trained weights, and answer by those of the folder they load last."""

    def load_weights(self, folder: Path) -> None:
        self.loaded.append(folder.name)
        self.num_known = len(PROBLEMS) if folder.name.startswith("step_") else 1


class DyingEngines(TrainingEngines):
    def load_weights(self, folder: Path) -> None:
        super().load_weights(folder)
        if len(self.loaded) == 2:
            raise WorkerDied("engine_0", "killed")


def test_the_evaluation_finds_what_the_engines_of_training_answered(
    tmp_path, tiny_model_path, monkeypatch
):
    data = write_data(tmp_path / "data")
    fresh = settings(tmp_path / "fresh")
    run = finished_run(fresh, tiny_model_path)
    knowing = KnowingEngines(tiny_model_path)
    expected = evaluate_with(knowing, fresh, run, data, tiny_model_path)

    config = settings(tmp_path / "out")
    run = finished_run(config, tiny_model_path)
    engines = TrainingEngines(tiny_model_path)
    ask_trained(config, run, data, tiny_model_path, engines)
    assert engines.loaded == [tiny_model_path.name, "step_000007"]
    assert run.read().accuracy_after is None  # to record it is the evaluation's
    assert run.read().timings_s.keys() == {"evaluate"}

    monkeypatch.delattr("tasks.evaluate.call_supervised")  # all is known: no process is started
    assert evaluate_run(config, run, data, tiny_model_path) == expected
    record = run.read()
    assert (record.accuracy_before, record.accuracy_after) == (0.25, 1.0)


def test_engines_that_die_cost_a_warning_and_the_rows_that_were_there_are_kept(
    tmp_path, tiny_model_path, caplog
):
    data = write_data(tmp_path / "data")
    config = settings(tmp_path / "out")
    run = finished_run(config, tiny_model_path)
    with caplog.at_level(logging.WARNING):
        ask_trained(config, run, data, tiny_model_path, DyingEngines(tiny_model_path))
    assert "the evaluation starts engines of its own: engine_0 died" in caplog.text
    evaluator = Evaluator(config, data)
    assert evaluator.rows_file("base", tiny_model_path).exists()
    checkpoint = run.path / "checkpoints" / "step_000007"
    assert not evaluator.rows_file(checkpoint_name(checkpoint), checkpoint).exists()


@pytest.mark.parametrize("changes", [False, True])
def test_a_reward_of_ones_own_is_asked_once_unless_its_source_changes(
    tmp_path, tiny_model_path, monkeypatch, changes
):
    monkeypatch.chdir(tmp_path)
    reward = tmp_path / f"own_reward_{changes}_of_this_test.py"
    reward.write_text("def score(**_):\n    return 1.0\n")
    env = {"name": "countdown", "reward": f"{reward.stem}:score"}
    config = settings(tmp_path / "out", env=env)
    run, data = finished_run(config, tiny_model_path), write_data(tmp_path / "data")
    ask_trained(config, run, data, tiny_model_path, TrainingEngines(tiny_model_path))
    if changes:
        reward.write_text("def score(**_):\n    return 0.5\n")
    calls = []
    monkeypatch.setattr("tasks.evaluate.call_supervised", lambda *work: calls.append(work))
    summaries = evaluate_run(config, run, data, tiny_model_path)
    assert [one.score.value for one in summaries] == ([] if changes else [1.0, 1.0])
    assert len(calls) == changes


def test_an_own_reward_whose_source_is_not_found_is_asked_anew(tmp_path, tiny_model_path):
    config = settings(tmp_path / "out", env={"name": "countdown", "reward": "some_module:score"})
    run = finished_run(config, tiny_model_path)
    engines = TrainingEngines(tiny_model_path)
    ask_trained(config, run, write_data(tmp_path / "data"), tiny_model_path, engines)
    assert (engines.loaded, engines.calls) == ([], 0)


def test_a_stop_that_is_asked_for_is_passed_on(tmp_path, tiny_model_path):
    class Stopped(TrainingEngines):
        def load_weights(self, folder: Path) -> None:
            raise KeyboardInterrupt

    config = settings(tmp_path / "out")
    run, data = finished_run(config, tiny_model_path), write_data(tmp_path / "data")
    with pytest.raises(KeyboardInterrupt):
        ask_trained(config, run, data, tiny_model_path, Stopped(tiny_model_path))
