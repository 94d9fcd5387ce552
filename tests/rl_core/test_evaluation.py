from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.collection import PromptedProblem
from rl_core.evaluation import (
    bootstrap_interval,
    evaluate_model,
    label_rows,
    pass_at_k,
    read_rows,
    summarise,
    wilson_interval,
    write_rows,
)
from rl_core.schema import EVALUATION
from rl_core.types import Completion, GenerationRequest, Problem, SamplingSettings, ScoredText


def test_pass_at_k_by_hand() -> None:
    assert pass_at_k(4, 1, 1) == 0.25
    assert pass_at_k(4, 1, 2) == 0.5  # 1 - C(3,2)/C(4,2) = 1 - 3/6
    assert pass_at_k(5, 2, 3) == pytest.approx(0.9)  # 1 - C(3,3)/C(5,3) = 1 - 1/10
    assert pass_at_k(4, 0, 4) == 0.0
    assert pass_at_k(4, 1, 4) == 1.0


@given(st.integers(1, 7).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_one(
    counts: tuple[int, int], data: st.DataObject
) -> None:
    num_samples, num_correct = counts
    k = data.draw(st.integers(1, num_samples))
    samples = [i < num_correct for i in range(num_samples)]
    subsets = [any(subset) for subset in itertools.combinations(samples, k)]
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(sum(subsets) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 1, 5), (4, 1, 0)])
def test_pass_at_k_refuses_impossible_counts(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} of {c} correct among {n} samples"):
        pass_at_k(n, c, k)


def test_wilson_intervals_by_hand() -> None:
    low, high = wilson_interval(0, 512)
    assert low == 0.0
    assert high == pytest.approx(3.841459 / (512 + 3.841459), rel=1e-6)  # z^2 / (n + z^2)
    assert wilson_interval(15, 50) == pytest.approx((0.19103, 0.43751), abs=1e-4)
    assert wilson_interval(512, 512)[1] == pytest.approx(1.0)


@given(st.integers(1, 2000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_ends_are_where_the_share_is_just_at_the_edge_of_the_likely(
    counts: tuple[int, int],
) -> None:
    num_correct, num_total = counts
    share = num_correct / num_total
    for end in wilson_interval(num_correct, num_total):
        distance = 1.959963984540054 * math.sqrt(end * (1 - end) / num_total)
        assert abs(share - end) == pytest.approx(distance, abs=1e-7)


def test_the_bootstrap_agrees_with_the_normal_approximation() -> None:
    values = np.random.default_rng(1).gamma(2.0, size=400)
    error = values.std(ddof=1) / math.sqrt(400)
    low, high = bootstrap_interval(values, seed=0)
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.15 * error)
    assert bootstrap_interval(values, seed=0) == (low, high)
    assert bootstrap_interval(values, seed=1) != (low, high)
    assert bootstrap_interval([0.5], seed=0) == (0.5, 0.5)


def prompted(index: int) -> PromptedProblem:
    problem = Problem(index, "countdown", (), f"truth {index}", num_solutions=index)
    return PromptedProblem(problem, f"prompt {index}", (index, 7))


class DiceEngine:
    """Answers with the prompt's first token and a number rolled from the request's seed."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int, int]] = []

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        self.asked.append((sampling.temperature, sampling.max_tokens, len(requests)))
        completions = []
        for request in requests:
            dice = np.random.default_rng(request.seed)
            rolled = int(dice.integers(2**40)) if sampling.temperature else 0
            ids = np.array([request.prompt_ids[0], rolled])
            completions.append(Completion(ids, np.zeros(2, dtype=np.float32), "stop"))
        return completions


def ask(engine: DiceEngine, indices: Sequence[int], *, seed: int = 0) -> list[dict[str, Any]]:
    return evaluate_model(
        engine.generate,
        [prompted(index) for index in indices],
        decode=lambda ids: " ".join(map(str, ids)),
        score=lambda response, truth: ScoredText(0.1, "wrong_value", f"{response} of {truth}"),
        max_tokens=64,
        samples_per_problem=3,
        temperature=0.8,
        seed=seed,
    )


def test_each_problem_is_asked_once_greedily_and_n_times_sampled() -> None:
    engine = DiceEngine()
    rows = ask(engine, [4, 9])
    assert engine.asked == [(0.0, 64, 2), (0.8, 64, 6)]
    assert [(row["mode"], row["prompt_index"], row["sample_index"]) for row in rows] == [
        ("greedy", 4, 0),
        ("greedy", 9, 0),
        *(("sampled", index, sample) for index in (4, 9) for sample in range(3)),
    ]
    assert rows[1] == {
        "prompt_index": 9,
        "data_source": "countdown",
        "num_solutions": 9,
        "mode": "greedy",
        "sample_index": 0,
        "prompt": "prompt 9",
        "response": "9 0",
        "answer": "9 0 of truth 9",
        "verdict": "wrong_value",
        "score": 0.1,
        "response_tokens": 2,
        "finish_reason": "stop",
    }
    assert len({row["response"] for row in rows[2:]}) == 6


def test_a_problems_rows_depend_on_nothing_but_the_seed_and_itself() -> None:
    def of_problem(rows: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
        return [row for row in rows if row["prompt_index"] == index]

    alone = ask(DiceEngine(), [9])
    assert of_problem(ask(DiceEngine(), [4, 9, 5]), 9) == alone
    assert ask(DiceEngine(), [9], seed=1) != alone


def row(index: int, verdict: str, mode: str = "greedy", **changes: Any) -> dict[str, Any]:
    scores = {"correct": 1.0, "no_answer": 0.0}
    return {
        "run_id": "r",
        "model": "base",
        "step": 0,
        "prompt_index": index,
        "data_source": "countdown",
        "num_solutions": index,
        "mode": mode,
        "sample_index": 0,
        "prompt": "p",
        "response": "r",
        "answer": None,
        "verdict": verdict,
        "score": scores.get(verdict, 0.1),
        "response_tokens": 10 * index,
        "finish_reason": "stop",
    } | changes


def test_a_summary_by_hand() -> None:
    greedy = [
        row(1, "correct"),
        row(2, "no_answer"),
        row(3, "bad_syntax"),
        row(4, "wrong_numbers"),
        row(5, "correct"),
        row(0, "too_long"),
    ]
    sampled = [
        row(index, verdict, "sampled", response_tokens=999, sample_index=i)
        for index, verdicts in {
            1: ["correct", "correct", "correct", "correct"],
            2: ["correct", "no_answer", "wrong_value", "no_answer"],
        }.items()
        for i, verdict in enumerate(verdicts)
    ]
    summary = summarise(sampled + greedy)
    assert (summary.model, summary.step, summary.num_problems) == ("base", 0, 6)
    assert summary.accuracy.value == pytest.approx(2 / 6)
    assert (summary.accuracy.low, summary.accuracy.high) == wilson_interval(2, 6)
    assert summary.score_mean == pytest.approx((1 + 0 + 0.1 + 0.1 + 1 + 0.1) / 6)
    assert summary.format_share == pytest.approx(3 / 6)
    assert summary.response_tokens_mean == pytest.approx(25.0)
    assert {k: estimate.value for k, estimate in summary.pass_at_k.items()} == {
        1: (1 + 0.25) / 2,
        2: (1 + 0.5) / 2,
        4: 1.0,
    }
    assert (summary.pass_at_k[1].low, summary.pass_at_k[1].high) == (0.25, 1.0)
    assert [
        (bucket.label, bucket.num_problems, bucket.accuracy.value)
        for bucket in summary.by_num_solutions
    ] == [("unknown", 1, 0.0), ("1", 1, 1.0), ("2-3", 2, 0.0), ("4-7", 2, 0.5)]


def test_pass_at_k_stops_at_the_samples_that_every_problem_has() -> None:
    rows = [row(1, "correct")]
    rows += [row(1, "correct", "sampled"), row(2, "correct", "sampled")]
    rows += [row(2, "correct", "sampled")]
    assert list(summarise(rows).pass_at_k) == [1]
    assert dict(summarise(rows[:1]).pass_at_k) == {}


def test_nothing_is_no_summary() -> None:
    with pytest.raises(ValueError, match="no greedy row among 1 evaluation rows"):
        summarise([row(1, "correct", "sampled")])


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = label_rows(ask(DiceEngine(), [4]), run_id="r", model="step_000007", step=7)
    file = tmp_path / "eval" / "step_000007.parquet"
    write_rows(rows, file)
    assert pq.read_schema(file).equals(EVALUATION)
    assert read_rows(file) == rows
    assert {(r["run_id"], r["model"], r["step"]) for r in rows} == {("r", "step_000007", 7)}
    assert [path.name for path in file.parent.iterdir()] == ["step_000007.parquet"]
