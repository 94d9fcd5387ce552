"""Saved questions about evaluations beside `rl_core.evaluation.summary`, which answers them too."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.evaluation.statistics import gain_interval, mcnemar_p, wilson_interval
from rl_core.evaluation.summary import compare, summarise
from rl_core.schema import EVALUATION
from tasks.queries import sql


def test_evaluation_in_sql_agrees_with_the_evaluation_itself(shared_runs):
    rows = sql.run_query("from evaluations where model = 'base'", root=shared_runs).to_dicts()
    rows[0]["num_solutions"] = 0
    expected = summarise(rows)
    summary = sql.ask("evaluation_summary", root=shared_runs).row(0, named=True)
    estimate = expected.accuracy
    assert summary["accuracy"] == estimate.value
    assert summary["accuracy_low"] == pytest.approx(estimate.low, abs=1e-6)
    assert summary["accuracy_high"] == pytest.approx(estimate.high, abs=1e-6)
    assert summary["format_share"] == expected.format_share.value
    assert summary["mean_score"] == pytest.approx(expected.score.value)
    assert summary["strict_accuracy"] == expected.accuracy_strict.value
    passes = sql.ask("pass_at_k", root=shared_runs).filter(pl.col("model") == "base")
    assert dict(passes.select("k", "pass_at_k").iter_rows()) == pytest.approx(
        {k: value.value for k, value in expected.pass_at_k.items()}
    )
    for row in passes.iter_rows(named=True):
        estimate = expected.pass_at_k[row["k"]]
        assert (row["low"], row["high"]) == pytest.approx((estimate.low, estimate.high), abs=1e-9)
    votes = sql.ask("majority_vote", root=shared_runs).row(0, named=True)
    assert votes["majority_accuracy"] == pytest.approx(expected.majority_at_k[4].value)


def test_sql_computes_as_python_does():
    """Of 40 problems, all numbers of wins and losses up to 12; shares of numbers of problems."""
    counts = [*itertools.product(range(13), range(13), [40]), (287, 9, 512), (0, 0, 1), (1, 0, 1)]
    with sql.connect({}) as connection:

        def asked(call: str) -> list[Any]:
            values = ", ".join(map(str, counts))
            return connection.sql(f"select {call} from (values {values}) t(a, b, n)").fetchall()

        for (won, lost, total), (low, high), (p_value,), (share_low, share_high) in zip(
            counts,
            asked("gain_interval(a, b, n)[1], gain_interval(a, b, n)[2]"),
            asked("mcnemar_p(a, b)"),
            asked("wilson(a / n, n)[1], wilson(a / n, n)[2]"),
            strict=True,
        ):
            assert (low, high) == pytest.approx(gain_interval(won, lost, total), abs=1e-9)
            assert p_value == pytest.approx(mcnemar_p(won, lost))
            assert (share_low, share_high) == pytest.approx(wilson_interval(won, total), abs=1e-9)
            # McNemar's exact test is more cautious than the score interval, never less
            assert p_value >= 0.05 or low > 0 or high < 0


@pytest.mark.parametrize(
    ("counts", "ranges"),
    [
        ([0, 1, 2, 3], [("unknown", 1), ("1", 1), ("2-3", 2)]),
        ([4, 7, 8, 15], [("4-7", 2), ("8-15", 2)]),
        ([16, 31, 32, 1000], [("16-31", 2), ("32-63", 1), ("512-1023", 1)]),
    ],
)
def test_ranges_of_solutions_double(counts, ranges, two_runs):
    for file in (two_runs / "runs" / "alpha" / "eval").glob("*.parquet"):
        rows = pl.read_parquet(file).with_columns(
            num_solutions=pl.col("prompt_index").replace_strict(dict(enumerate(counts)))
        )
        rows.write_parquet(file)
    answer = sql.ask("accuracy_by_num_solutions", root=two_runs)
    assert answer.select("solutions", "problems").rows() == ranges


def test_models_of_different_runs_are_compared_on_the_same_problems(tmp_path):
    """Of 18 equal problems one model alone solves 10 and the other alone 2; one is not equal."""

    def write(run_id: str, solved: set[int], last_prompt: str) -> list[dict[str, Any]]:
        same = {"run_id": run_id, "model": "step_000001", "mode": "greedy"}
        same |= {"evaluation": "whole", "num_problems": 19}
        prompts = [*(f"p{i}" for i in range(18)), last_prompt]
        verdicts = ["correct" if i in solved else "no_answer" for i in range(19)]
        rows = [
            same | {"prompt_index": i, "prompt": p, "verdict": v, "ground_truth": f"t{i}"}
            for i, (p, v) in enumerate(zip(prompts, verdicts, strict=True))
        ]
        file = tmp_path / "runs" / run_id / "eval" / "step_000001.parquet"
        file.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, schema=EVALUATION), file)
        return rows

    one = write("one", {*range(13), 18}, "here")
    two = write("two", {0, 1, 2, 13, 14}, "there")
    (row,) = sql.ask("compare_models", root=tmp_path).rows()
    p_value = pytest.approx(compare(one[:18], two[:18]).p_value)
    gain = (8 / 18, *map(pytest.approx, gain_interval(10, 2, 18)))
    assert row == ("one", "step_000001", "two", "step_000001", 18, 10, 2, *gain, p_value)


def write_samples(file: Path, counts: Sequence[int], **labels: Any) -> list[dict[str, Any]]:
    """Rows of problems of whose four samples so many are correct."""
    rows = [
        {"run_id": "one", "mode": "sampled", "evaluation": "hot", "num_problems": len(counts)}
        | {"prompt_index": i, "prompt": f"p{i}", "ground_truth": "t", "sample_index": sample}
        | {"score": float(sample), "response_tokens": sample, "num_solutions": 1, **labels}
        | dict.fromkeys(
            ("verdict", "verdict_strict", "verdict_lenient"),
            "correct" if sample < right else "no_answer",
        )
        for i, right in enumerate(counts)
        for sample in range(4)
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=EVALUATION), file)
    return [dict.fromkeys(EVALUATION.names) | row for row in rows]


def test_means_of_samples_in_sql_are_those_of_python(tmp_path):
    folder = tmp_path / "runs" / "one" / "eval"
    base = write_samples(folder / "base.parquet", [0, 4, 1, 2, 0, 3, 1], model="base", step=0)
    counts, trained = [4, 4, 3, 1, 0, 4, 3], {"model": "step_000003", "step": 3}
    rows = write_samples(folder / "step_000003.parquet", counts, **trained)
    result, summary = compare(rows, base), summarise(rows)
    accuracy = (summary.accuracy.value, summary.accuracy.low, summary.accuracy.high)
    for question in ("evaluation_summary", "kept_evaluations"):
        answer = sql.ask(question, root=tmp_path).row(1, named=True)
        named = (answer["accuracy"], answer["accuracy_low"], answer["accuracy_high"])
        assert (answer["problems"], named) == (7, pytest.approx(accuracy, abs=1e-9))
    assert sql.ask("evaluation_summary", root=tmp_path)["decoding"][0] == "mean of 4 samples"
    gain = (result.gain.value, result.gain.low, result.gain.high, result.p_value)
    expected = ("one", "step_000003", 7, 4, 1, *map(pytest.approx, gain))
    assert sql.ask("gain_over_base", root=tmp_path).row(0) == expected
    changes = sql.ask("won_and_lost", root=tmp_path).select("prompt_index", "change").rows()
    assert changes == [(0, "won"), (2, "won"), (5, "won"), (6, "won"), (3, "lost")]
    solved = sql.ask("accuracy_by_num_solutions", root=tmp_path).row(0, named=True)
    assert (solved["problems"], solved["gain"]) == (7, pytest.approx(result.gain.value))
    for run_id, evaluation in (("same", "hot"), ("other", "cold")):
        file = tmp_path / "runs" / run_id / "eval" / "step_000003.parquet"
        write_samples(file, counts, evaluation=evaluation, **trained)
    pairs = sql.ask("compare_models", root=tmp_path).select("run_id", "other_run_id", "gain")
    assert pairs.rows() == [("one", "same", 0.0)]
    settings = "evaluation: {decoding: sampled, samples_per_problem: 4, temperature: 0.6}"
    (folder.parent / "config.yaml").write_text(settings)
    decodings = sql.ask("compare_runs", root=tmp_path).select("run_id", "decoding").rows()
    words = "decoding=sampled samples_per_problem=4 temperature=0.6"
    assert dict(decodings) == {"one": words, "same": None, "other": None}
