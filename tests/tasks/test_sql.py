from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.checkpoints import save_checkpoint
from rl_core.config import RunConfig, StorageConfig
from rl_core.evaluation import summarise
from rl_core.schema import EVALUATION, ROLLOUTS
from rl_core.tracking import RunFolder
from rl_core.types import Completion, Problem, Rollout, ScoredText
from tasks import sql

A, B = "alpha", "beta"

# question: arguments, columns, rows; worked out by hand from conftest.py
ANSWERS: dict[str, tuple[dict[str, Any], list[str], list[tuple[Any, ...]]]] = {
    "verdict_shares_by_step": (
        {},
        ["run_id", "step", "verdict", "rollouts", "share"],
        [
            (A, 1, "no_answer", 2, 0.5),
            (A, 1, "bad_syntax", 1, 0.25),
            (A, 1, "wrong_value", 1, 0.25),
            (A, 2, "correct", 3, 0.75),
            (A, 2, "wrong_value", 1, 0.25),
            (A, 3, "wrong_value", 2, 0.5),
            (A, 3, "correct", 1, 0.25),
            (A, 3, "no_answer", 1, 0.25),
            (B, 1, "wrong_value", 1, 1.0),
        ],
    ),
    "never_solved": (
        {"min_attempts": "1"},
        ["run_id", "prompt_index", "attempts", "near_misses", "first_step", "last_step", "prompt"],
        [(A, 9, 4, 2, 1, 3, "prompt 9"), (B, 7, 1, 1, 1, 1, "prompt 7")],
    ),
    "format_only_steps": (
        {},
        ["run_id", "step", "rollouts", "mean_score", "accuracy", "format_only_share"],
        [(A, 1, 4, 0.05, 0.0, 0.5), (B, 1, 1, 0.1, 0.0, 1.0)],
    ),
    "all_fail_groups": (
        {},
        ["run_id", "step", "total_groups", "all_fail", "all_fail_with_spread", "all_solved"],
        [(A, 1, 2, 2, 2, 0), (A, 2, 2, 0, 0, 1), (A, 3, 2, 1, 0, 0)],
    ),
    "length_correct_vs_wrong": (
        {"steps_per_row": 2},
        ["run_id", "from_step", "correct_tokens", "wrong_tokens", "cut_share", "wrong_cut_share"],
        [
            (A, 1, 8.0, 23.2, 0.25, 0.4),  # (12+8+4)/3, (10+20+30+40+16)/5
            (A, 3, 6.0, 104 / 3, 0.25, 1 / 3),
            (B, 1, None, 50.0, 0.0, 0.0),
        ],
    ),
    "longest_responses": (
        {"limit": 3},
        ["run_id", "step", "response_tokens", "finish_reason", "response"],
        [
            (A, 3, 64, "length", "response 3.1.1"),
            (B, 1, 50, "stop", "response 1.0.0"),
            (A, 1, 40, "length", "response 1.1.1"),
        ],
    ),
    "logprob_gap_by_step": (
        {},
        ["run_id", "step", "mean_gap", "max_gap", "off_share"],
        [(A, 1, 0.002, 0.003, 0.0), (A, 2, 0.005, 0.02, 0.25)],
    ),
    "same_problem_over_time": (
        {},
        ["run_id", "step", "prompt_index", "sample_index", "verdict", "answer"],
        [  # 5, 7 and 9 were tried four times each by alpha: the lowest is taken
            (A, 2, 5, 0, "correct", "3 * 4"),
            (A, 2, 5, 1, "correct", "4 * 3"),
            (A, 3, 5, 0, "correct", "3 * 4"),
            (A, 3, 5, 1, "no_answer", None),
            (B, 1, 7, 0, "wrong_value", None),
        ],
    ),
    "samples_of_a_verdict": (
        {"verdict": "bad_syntax"},
        ["run_id", "step", "prompt_index", "verdict", "score", "response", "prompt"],
        [(A, 1, 9, "bad_syntax", 0.1, "response 1.1.0", "prompt 9")],
    ),
    "learning_curve": (
        {},
        ["run_id", "step", "score", "accuracy", "test_accuracy", "response_tokens", "kl"],
        [
            (A, 0, None, None, 0.25, None, None),
            (A, 1, 0.05, 0.0, None, 25.0, None),
            (A, 2, 0.775, 0.75, None, 10.0, None),
            (A, 3, 0.3, 0.25, 0.5, None, None),
            (B, 0, None, None, 0.125, None, None),
            (B, 1, 0.1, 0.0, None, None, None),
        ],
    ),
    "throughput_by_step": (
        {},
        ["run_id", "step", "tokens_per_s", "step_s", "gen_s", "update_actor_s", "testing_s"],
        [
            (A, 1, 100.0, 3.0, 1.0, None, None),
            (A, 2, 200.0, None, 2.0, 1.0, None),
            (A, 3, None, 6.0, 3.0, 2.0, None),
        ],
    ),
    "time_by_phase": (
        {},
        ["run_id", "phase", "steps", "total_s", "mean_s", "share"],
        [(A, "gen", 3, 6.0, 2.0, 2 / 3), (A, "update_actor", 2, 3.0, 1.5, 1 / 3)],
    ),
    "evaluation_summary": (
        {},
        ["model", "step", "problems", "accuracy", "accuracy_low", "accuracy_high", "mean_score"],
        [  # Wilson: (p + z^2/2n -+ z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.96
            ("base", 0, 4, 0.25, 0.04559, 0.69936, 0.275),
            ("step_000003", 3, 4, 0.5, 0.15004, 0.84996, 0.55),
        ],
    ),
    "accuracy_by_num_solutions": (
        {},
        ["model", "solutions", "problems", "base_accuracy", "accuracy", "gain"],
        [
            ("step_000003", "1", 2, 0.0, 0.5, 0.5),
            ("step_000003", "2-3", 1, 0.0, 1.0, 1.0),
            ("step_000003", "8-15", 1, 1.0, 0.0, -1.0),
        ],
    ),
    "pass_at_k": (
        {},
        ["model", "k", "problems", "pass_at_k", "low", "high"],
        [  # base: 0 and 2 of 4 solved; trained: 4 and 1 of 4; 1.96 * sd / sqrt(2) either side
            ("base", 1, 2, 0.25, 0.0, 0.25 + 1.96 * 0.25),
            ("base", 2, 2, 5 / 12, 0.0, 1.0),  # 1 - C(2,2)/C(4,2) = 5/6
            ("base", 4, 2, 0.5, 0.0, 1.0),
            ("step_000003", 1, 2, 0.625, 0.0, 1.0),
            ("step_000003", 2, 2, 0.75, 0.75 - 1.96 * 0.25, 1.0),
            ("step_000003", 4, 2, 1.0, 1.0, 1.0),
        ],
    ),
    "won_and_lost": (
        {},
        ["model", "prompt_index", "change", "num_solutions", "base_verdict", "verdict"],
        [
            ("step_000003", 0, "won", 1, "no_answer", "correct"),
            ("step_000003", 2, "won", 3, "no_answer", "correct"),
            ("step_000003", 3, "lost", 12, "correct", "wrong_value"),
        ],
    ),
    "gain_over_base": (
        {},
        ["model", "problems", "won", "lost", "gain", "gain_low", "gain_high"],
        [  # (won - lost -+ 1.96 sqrt(won + lost - (won - lost)^2 / n)) / n
            ("step_000003", 4, 2, 1, 0.25, -0.56257, 1.06257)
        ],
    ),
    "evaluation_verdicts": (
        {},
        ["model", "verdict", "responses", "share"],
        [
            ("base", "no_answer", 2, 0.5),
            ("base", "correct", 1, 0.25),
            ("base", "wrong_value", 1, 0.25),
            ("step_000003", "correct", 2, 0.5),
            ("step_000003", "wrong_value", 2, 0.5),
        ],
    ),
    "runs_overview": (
        {},
        ["run_id", "status", "steps", "accuracy_before", "accuracy_after", "minutes"],
        [
            (B, "running", 1, 0.125, 0.125, 0.5),
            (A, "finished", 3, 0.25, 0.5, 10.5),
        ],
    ),
    "best_checkpoint": (
        {},
        ["run_id", "step", "accuracy", "accuracy_at_start", "tested_best", "is_latest"],
        [(A, 2, 0.5, 0.25, 0.5, False)],
    ),
    "time_by_stage": (
        {},
        ["run_id", "stage", "seconds", "share"],
        [(A, "train", 180.0, 0.6), (A, "evaluate", 60.0, 0.2), (A, "generate", 60.0, 0.2)],
    ),
}


def rounded(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple(round(x, 4) if isinstance(x, float) else x for x in row) for row in rows]


@pytest.mark.parametrize("name", sorted(query.name for query in sql.list_queries()))
def test_saved_question_gives_the_hand_computed_answer(name: str, shared_runs: Path) -> None:
    arguments, columns, rows = ANSWERS[name]
    answer = sql.ask(name, arguments, root=shared_runs).select(columns)
    assert rounded(answer.rows()) == rounded(rows)


@pytest.mark.parametrize("query", sql.list_queries(), ids=lambda query: query.name)
def test_header_says_what_a_row_is_and_what_to_ask(query: sql.Query, tmp_path: Path) -> None:
    assert query.description.startswith("one row per ")
    assert "Ask it " in query.description
    assert sql.ask(query.name, root=tmp_path / "nothing").is_empty()


def test_evaluation_in_sql_agrees_with_the_evaluation_itself(shared_runs: Path) -> None:
    rows = sql.run_query("from evaluations where model = 'base'", root=shared_runs).to_dicts()
    rows[0]["num_solutions"] = 0
    expected = summarise(rows, seed=0)
    summary = sql.ask("evaluation_summary", root=shared_runs).row(0, named=True)
    estimate = expected.accuracy
    assert summary["accuracy"] == estimate.value
    assert summary["accuracy_low"] == pytest.approx(estimate.low, abs=1e-6)
    assert summary["accuracy_high"] == pytest.approx(estimate.high, abs=1e-6)
    assert summary["format_share"] == expected.format_share
    assert summary["mean_score"] == pytest.approx(expected.score_mean)
    passes = sql.ask("pass_at_k", root=shared_runs).filter(pl.col("model") == "base")
    assert dict(passes.select("k", "pass_at_k").iter_rows()) == pytest.approx(
        {k: value.value for k, value in expected.pass_at_k.items()}
    )


@pytest.mark.parametrize("counts", [[0, 1, 2, 3], [4, 7, 8, 15], [16, 31, 32, 1000]])
def test_ranges_of_solutions_are_those_of_the_evaluation(counts: list[int], two_runs: Path) -> None:
    for file in (two_runs / "runs" / A / "eval").glob("*.parquet"):
        rows = pl.read_parquet(file).with_columns(
            num_solutions=pl.col("prompt_index").replace_strict(dict(enumerate(counts)))
        )
        rows.write_parquet(file)
    base = rows.filter(pl.col("model") == "base").to_dicts()
    buckets = [(b.label, b.num_problems) for b in summarise(base, seed=0).by_num_solutions]
    answer = sql.ask("accuracy_by_num_solutions", root=two_runs)
    assert answer.select("solutions", "problems").rows() == buckets


def test_there_are_the_questions_that_the_diary_asked() -> None:
    assert {query.name for query in sql.list_queries()} == set(ANSWERS)
    assert {query.topic for query in sql.list_queries()} == {
        "rollouts",
        "metrics",
        "evaluation",
        "runs",
    }


def test_one_run_by_name_or_latest(shared_runs: Path) -> None:
    def runs(run: str | None) -> list[str]:
        return sql.run_query("select run_id from runs", root=shared_runs, run=run)[
            "run_id"
        ].to_list()

    assert runs(None) == [A, B]
    assert runs("alpha") == [A]
    assert runs("latest") == [B]
    counted = sql.run_query("select count(*) from rollouts", root=shared_runs, run="latest")
    assert counted.item() == 1
    with pytest.raises(ValueError, match=r"no run 'alhpa' in .*: did you mean 'alpha'\?"):
        runs("alhpa")


def test_without_any_run_all_views_are_empty_with_their_columns(tmp_path: Path) -> None:
    def columns(view: str) -> list[str]:
        frame = sql.run_query(f"from {view}", root=tmp_path)
        assert frame.is_empty()
        return frame.columns

    assert columns("rollouts") == ROLLOUTS.names
    assert columns("evaluations") == EVALUATION.names
    assert columns("metrics") == ["run_id", "step", "epoch", "logged_at", "metric", "value"]
    with pytest.raises(ValueError, match=r"no run in .* yet"):
        sql.run_query("from runs", root=tmp_path, run="latest")


def test_unknown_names_suggest_the_nearest(shared_runs: Path) -> None:
    with pytest.raises(ValueError, match=r"'learning_curv': did you mean 'learning_curve'\?"):
        sql.ask("learning_curv", root=shared_runs)
    with pytest.raises(ValueError, match=r"no parameter 'limt': did you mean 'limit'\?"):
        sql.ask("longest_responses", {"limt": "3"}, root=shared_runs)
    with pytest.raises(ValueError, match="parameter limit=many does not read as int"):
        sql.ask("longest_responses", {"limit": "many"}, root=shared_runs)


def test_parameters_are_values_never_sql(shared_runs: Path) -> None:
    hostile = "correct' or 1=1 --"
    assert sql.ask("samples_of_a_verdict", {"verdict": hostile}, root=shared_runs).is_empty()
    shifted = sql.run_query("select $days + 1 as n", {"days": 2}, root=shared_runs)
    assert shifted["n"].to_list() == [3]


@pytest.mark.parametrize(
    "statement",
    [
        "drop view runs",
        "select 1; select 2",
        "",
        "copy (select 1) to '{out}'",
        "with a as (copy (select 1) to '{out}') select * from a",  # a SELECT to DuckDB 2
        "with a as (insert into runs values (1) returning *) select * from a",
        "attach '{out}'",
        "install httpfs",
        "set enable_external_access = true",
        "select * from read_text('{secret}')",
        "select * from read_parquet('{secret}')",
        "from '{secret}'",
        "select * from glob('/*')",
        "select * from shared_runs",  # a Python variable
        "select nonsense from runs",
        "selec 1",
    ],
)
def test_only_a_select_over_the_views_is_answered(
    statement: str, shared_runs: Path, tmp_path: Path
) -> None:
    out, secret = tmp_path / "out.csv", tmp_path / "secret.parquet"
    pq.write_table(pa.table({"x": [1]}), secret)
    with pytest.raises(ValueError, match=r".") as caught:
        sql.run_query(statement.format(out=out, secret=secret), root=shared_runs)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def rollout(verdict: str, index: int) -> Rollout:
    return Rollout(
        problem=Problem(index, "countdown", (), {"target": 6, "numbers": [1, 2, 3]}, 1),
        group_id=index,
        sample_index=0,
        prompt_text="p",
        prompt_ids=(1, 2),
        completion=Completion(np.array([3, 4]), np.array([-0.5, -0.25], np.float32), "stop"),
        response_text="r",
        scored=ScoredText(float(verdict == "correct"), verdict, None),
    )


def write_weights(folder: Path) -> None:
    (folder / "weights").write_bytes(b"12345")


def test_reads_what_a_run_really_writes_while_it_writes(tmp_path: Path) -> None:
    run = RunFolder.create(RunConfig(run_id="live", storage=StorageConfig(root=tmp_path)))
    metrics = run.path / "metrics.jsonl"
    for step in (1, 2):
        run.rollouts.write(
            step,
            0,
            [rollout("correct", 0), rollout("no_answer", step)],
            {},
            policy_version=step - 1,
        )
        run.metrics.append(step, {"reward/accuracy": 0.5, "critic/kl": float("nan")})
        metrics.write_text(metrics.read_text() + '{"step": 3, "rew')
        shares = sql.ask("verdict_shares_by_step", root=tmp_path)
        assert shares.group_by("step").len().sort("step").rows() == [
            (s + 1, 2) for s in range(step)
        ]
        curve = sql.ask("learning_curve", root=tmp_path, run="live")
        assert curve["accuracy"].to_list() == [0.5] * step
        run.metrics.cut_after(step)
    save_checkpoint(run.path, 2, write_weights, 0.5)
    found = sql.run_query(
        "select step, accuracy, is_best, is_latest from checkpoints", root=tmp_path
    )
    assert found.rows() == [(2, 0.5, True, True)]
    overview = sql.ask("runs_overview", root=tmp_path)
    assert overview.select("run_id", "status", "steps").rows() == [("live", "running", 2)]
