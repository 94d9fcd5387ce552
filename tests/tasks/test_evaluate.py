import shutil
from pathlib import Path
from typing import Any

import pytest

from rl_core.checkpoints.pruning import prune
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.data.prompts import load_tokenizer
from rl_core.evaluation.rows import read_rows
from rl_core.evaluation.statistics import wilson_interval
from rl_core.evaluator import Evaluator
from rl_core.runs.run_folder import RunFolder
from tasks.evaluate import evaluate_models, evaluate_run, evaluate_with, group_table, summary_table
from tasks.queries.checkpoint_names import find_model
from tests.support.checkpoint_files import copying
from tests.support.held_out import AnsweringEngines, write_puzzles

PROBLEMS = [
    ("Use [1, 2, 3] to make 6.\n<think>", [1, 2, 3], 6, "1 + 2 + 3", 1),
    ("Use [2, 3, 4] to make 14.\n<think>", [2, 3, 4], 14, "2 + 3 * 4", 2),
    ("Use [5, 6, 7] to make 18.\n<think>", [5, 6, 7], 18, "5 + 6 + 7", 3),
    ("Use [9, 8, 1] to make 17.\n<think>", [9, 8, 1], 17, "9 * 1 + 8", 5),
]


def write_data(folder: Path) -> Path:
    return write_puzzles(folder, PROBLEMS)


def settings(root: Path, **changes: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "run_id": "r",
            "storage": {"root": root},
            "data": {"max_response_length": 16},
            "evaluation": {"samples_per_problem": 2},
            "rollout": {"engine": "hf"},
        }
        | changes
    )


def finished_run(config: RunConfig, checkpoint: Path) -> RunFolder:
    run = RunFolder.create(config)
    save_checkpoint(run.path, 7, copying(checkpoint), 0.5)
    return run


class KnowingEngines(AnsweringEngines):
    """Engines whose base model solves the first problem alone, and whose checkpoint solves all.

    Sampled, either model gives every second sample without an answer.
    """

    num_known = 1

    def load_weights(self, folder: Path) -> None:
        self.loaded.append(folder.name)
        self.num_known = len(PROBLEMS)

    def answer(self, prompt: str, position: int, *, sampled: bool) -> str:
        if sampled and position % 2:
            return "I do not know"
        known = {problem[0]: problem[3] for problem in PROBLEMS[: self.num_known]}
        return f"<answer>{known.get(prompt, '1 + 1')}</answer>"


def test_a_token_without_a_row_in_the_model_is_named(tmp_path, tiny_model_path):
    """As fine-tuning by hand may leave one: the embedding gets no row for the new token."""
    model = shutil.copytree(tiny_model_path, tmp_path / "model")
    tokenizer = load_tokenizer(str(model))
    tokenizer.add_tokens(["Use"])
    tokenizer.save_pretrained(model)
    evaluator = Evaluator(settings(tmp_path / "out"), write_data(tmp_path / "data"))
    with pytest.raises(ValueError, match=r"'Use', which prompts hold, is token"):
        evaluator.ask(KnowingEngines(tiny_model_path), "base", model)


def test_both_models_are_scored_on_disk_and_in_the_record(tmp_path, tiny_model_path, monkeypatch):
    data = write_data(tmp_path / "data")
    config = settings(tmp_path / "out")
    run = finished_run(config, tiny_model_path)
    engines = KnowingEngines(tiny_model_path)
    found = evaluate_with(engines, config, run, data, tiny_model_path)
    before, after = found
    assert engines.loaded == ["step_000007"]
    monkeypatch.delattr("tasks.evaluate.call_supervised")  # all is known: no process is started
    assert evaluate_run(config, run, data, tiny_model_path) == [before, after]

    assert (before.model, before.step, before.accuracy.value) == ("base", 0, 0.25)
    assert (after.model, after.step, after.accuracy.value) == ("step_000007", 7, 1.0)
    assert before.score.value == pytest.approx((1 + 3 * 0.1) / 4)
    assert {k: v.value for k, v in after.pass_at_k.items()} == {1: 0.5, 2: 1.0}
    record = run.read()
    assert (record.accuracy_before, record.accuracy_after) == (0.25, 1.0)

    rows = read_rows(run.path / "eval" / "base.parquet")
    assert {(r["run_id"], r["model"], r["step"]) for r in rows} == {("r", "base", 0)}
    greedy = [r for r in rows if r["mode"] == "greedy"]
    assert [r["verdict"] for r in greedy] == ["correct", *["wrong_numbers"] * 3]
    assert greedy[0]["answer"] == "1 + 2 + 3"
    assert greedy[0]["prompt"] == "Use [1, 2, 3] to make 6.\n<think>"
    assert len(rows) == 4 + 4 * 2
    trained = read_rows(run.path / "eval" / "step_000007.parquet")
    assert [r["verdict"] for r in trained if r["mode"] == "sampled"] == ["correct", "no_answer"] * 4

    low, high = wilson_interval(1, 4)
    table = {row["measure"]: (row["base"], row["step_000007"]) for row in summary_table(found)}
    assert list(table)[:4] == ["problems", "accuracy", "strict", "lenient"]
    assert table["accuracy"][0] == f"0.250 ({low:.3f} to {high:.3f})"
    sampled = after.pass_at_k[2]
    assert table["pass@2"][1] == f"1.000 ({sampled.low:.3f} to {sampled.high:.3f})"
    assert table["tokens"][0] == before.response_tokens.as_text(1)
    groups = group_table(found)
    names = ["3 numbers", "1 solution", "2-3 solutions", "4-7 solutions"]
    assert [row["problems"] for row in groups] == names
    assert [row["number"] for row in groups] == [4, 1, 2, 1]
    assert [row["base"][:5] for row in groups] == ["0.250", "1.000", "0.000", "0.000"]
    assert [row["step_000007"][:5] for row in groups] == ["1.000"] * 4


def test_a_model_is_asked_once_per_model_data_and_settings(tmp_path, tiny_model_path):
    data = write_data(tmp_path / "data")
    model_path = tmp_path / "model"
    shutil.copytree(tiny_model_path, model_path)

    def calls(**changes: Any) -> int:
        config = settings(tmp_path / "out", **changes)
        run = finished_run(config, tiny_model_path)
        engines = KnowingEngines(model_path)
        before, _ = evaluate_with(engines, config, run, data, model_path)
        assert before.accuracy.value == 0.25
        rows = read_rows(run.path / "eval" / "base.parquet")
        assert {row["run_id"] for row in rows} == {run.run_id}
        return engines.calls

    assert calls() == 4
    assert calls(run_id="another", seed=1) == 2
    assert calls(data={"max_response_length": 17}) == 4
    assert calls(evaluation={"samples_per_problem": 2, "seed": 1}) == 4
    (model_path / "model.safetensors").touch()
    assert calls() == 2  # the base model; the run's checkpoint is what it was
    assert calls() == 0


def test_fewer_problems_and_no_checkpoint(tmp_path, tiny_model_path, caplog):
    data = write_data(tmp_path / "data")
    config = settings(tmp_path / "out", evaluation={"samples_per_problem": 1, "max_problems": 2})
    run = RunFolder.create(config)
    engines = KnowingEngines(tiny_model_path)
    (before,) = evaluate_with(engines, config, run, data, tiny_model_path)
    assert (before.num_problems, before.accuracy.value) == (2, 0.5)
    assert engines.loaded == []
    assert "r has no checkpoint: only the base model was evaluated" in caplog.text
    record = run.read()
    assert (record.accuracy_before, record.accuracy_after) == (0.5, None)


def test_a_checkpoint_stays_until_its_rows_are_there(tmp_path, tiny_model_path):
    """A newer one is saved and all others pruned just before and just after it is loaded."""
    config = settings(tmp_path / "out")
    run = finished_run(config, tiny_model_path)

    class Racing(KnowingEngines):
        def prune_all_but(self, step: int) -> None:
            save_checkpoint(run.path, step, lambda folder: (folder / "x").touch(), step / 10)
            prune(run.path, keep_last=0, quota_bytes=1)

        def load_weights(self, folder: Path) -> None:
            self.prune_all_but(8)
            super().load_weights(folder)
            assert (folder / "model.safetensors").is_file()
            self.prune_all_but(9)

    engines = Racing(tiny_model_path)
    data = write_data(tmp_path / "data")
    _, after = evaluate_with(engines, config, run, data, tiny_model_path)
    assert (after.model, after.accuracy.value) == ("step_000007", 1.0)
    assert engines.loaded == ["step_000007"]
    prune(run.path, keep_last=0, quota_bytes=1)
    assert [path.name for path in (run.path / "checkpoints").glob("step_*")] == ["step_000009"]


def test_a_damaged_checkpoint_is_not_evaluated_under_any_name(tmp_path, tiny_model_path):
    config = settings(tmp_path / "out")
    run = finished_run(config, tiny_model_path)
    data = write_data(tmp_path / "data")
    file = run.path / "checkpoints" / "step_000007" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    words = r"step_000007 is damaged: model\.safetensors has other content than was saved"
    for name in ("best", "step_000007"):
        model = find_model(f"r/{name}", tmp_path / "out")
        with pytest.raises(ValueError, match=words):
            evaluate_models(config, data, model)
    (before,) = evaluate_with(KnowingEngines(tiny_model_path), config, run, data, tiny_model_path)
    assert before.model == "base"


def test_answers_that_another_reward_judged_stay(tmp_path, tiny_model_path, monkeypatch):
    """The function has the same name, so only its source tells the two evaluations apart."""
    monkeypatch.chdir(tmp_path)
    reward = tmp_path / "own_reward_of_this_test.py"
    data = write_data(tmp_path / "data")
    config = settings(tmp_path / "out", env={"name": "countdown", "reward": f"{reward.stem}:score"})
    evaluations = []
    for text in ("def score(**_): return 1.0\n", "def score(**_): return 0.0\n"):
        reward.write_text(text)
        evaluator = Evaluator(config, data)
        evaluations.append((evaluator.evaluation, evaluator.rows_file("m", tiny_model_path)))
    assert evaluations[0][0] != evaluations[1][0]
    assert evaluations[0][1] != evaluations[1][1]
    reward.unlink()
    assert Evaluator(config, data).settings["reward_source"] == [None]
