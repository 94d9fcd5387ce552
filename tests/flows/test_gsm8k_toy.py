"""The preset `gsm8k-toy` cut small: every real part, from word problems to report.

What it is worth is measured, not tested: `countdown-train run preset=gsm8k-toy` prints both
accuracies, and `benchmarks/README.md` keeps them.
"""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from rl_core.envs.gsm8k import score_response
from tasks.queries.saved_questions import list_queries
from tasks.queries.sql import ask
from tests.support.programs import cli, own_prefect

SMALL = (
    *("data.train_size=64", "data.test_size=16", "data.train_batch_size=8"),
    *("data.max_response_length=64", "actor.mini_batch_size=4", "algorithm.group_size=4"),
    # Enough to write "####" and a number now and then, right or wrong.
    *("base_model.steps=40", "base_model.hidden_size=64", "base_model.num_heads=2"),
    *("base_model.num_layers=2", "base_model.batch_size=16", "base_model.num_threads=1"),
    *("base_model.warmup_steps=5", "base_model.max_response_tokens=64"),
    *("rollout.num_engines=1", "resources.learner_threads=1"),
    *("trainer.total_steps=2", "trainer.test_freq=1", "evaluation.samples_per_problem=2"),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage root of one finished run, `toy`."""
    folder = tmp_path_factory.mktemp("toy")
    words = ["preset=gsm8k-toy", *SMALL, "run_id=toy", f"storage.root={folder}/out"]
    done = cli("run", *words, env=own_prefect(folder / "prefect"), timeout_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same command with seed=1" in done.stdout
    return folder / "out"


def test_the_run_finishes_with_both_accuracies(root: Path) -> None:
    record = json.loads((root / "runs" / "toy" / "run.json").read_text())
    assert (record["status"], record["steps"], record["preset"]) == ("finished", 2, "gsm8k-toy")
    assert 0 <= record["accuracy_before"] <= 1
    assert 0 <= record["accuracy_after"] <= 1
    assert len(list((root / "models").glob("gsm8k-*/model.safetensors"))) == 1
    assert len(list((root / "data").glob("gsm8k-*/train.parquet"))) == 1


def test_groups_are_rolled_out_scored_and_compared(root: Path) -> None:
    rollouts = pl.read_parquet(root / "runs" / "toy" / "rollouts" / "*.parquet")
    assert rollouts.height == 2 * 8 * 4
    assert set(rollouts["data_source"]) == {"openai/gsm8k"}
    assert set(rollouts["verdict"]) <= {"correct", "wrong_value", "no_answer"}
    groups = rollouts.group_by("step", "group_id").agg(
        pl.len(),
        pl.col("prompt").n_unique(),
        pl.col("advantage_mean").abs().sum(),
        pl.col("reward"),
    )
    assert set(groups["len"]) == {4}
    assert set(groups["prompt"]) == {1}
    for rewards, advantages in groups.select("reward", "advantage_mean").iter_rows():
        assert (len(set(rewards)) > 1) == (advantages > 0)
    for row in rollouts.iter_rows(named=True):
        assert row["prompt"].endswith("Let me solve this step by step.\n<think>")
        assert score_response(row["response"], "1").answer == row["answer"]


def test_both_models_are_evaluated_on_the_test_split(root: Path) -> None:
    rows = pl.read_parquet(root / "runs" / "toy" / "eval" / "*.parquet")
    counts = rows.group_by("model", "mode").len().sort("model", "mode").rows()
    models = ("base", "step_000002")
    assert counts == [(m, *c) for m in models for c in (("greedy", 16), ("sampled", 32))]


def test_every_saved_question_has_an_answer_and_so_has_the_report(root: Path) -> None:
    for query in list_queries():
        ask(query.name, root=root, run="toy")
    (summary,) = ask("gain_over_base", root=root, run="toy").to_dicts()
    assert summary["problems"] == 16
    page = (root / "runs" / "toy" / "report.html").read_text()
    assert "pass@k" in page
    assert "#### " in page
    assert "By number of solutions" not in page, "GSM8K has no such label"
