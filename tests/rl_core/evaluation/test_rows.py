from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.config.operations import EvaluationConfig, protocol_of
from rl_core.evaluation.rows import evaluate_model, label_rows, read_rows, write_rows
from rl_core.schema import EVALUATION
from rl_core.types import (
    Completion,
    GenerationRequest,
    Problem,
    PromptedProblem,
    SamplingSettings,
    ScoredText,
)


def prompted(index: int) -> PromptedProblem:
    truth = {"target": index, "numbers": [1, 2, 3, index]}
    problem = Problem(index, "countdown", (), truth, num_solutions=index)
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
            rolled = np.random.default_rng(request.seed).integers(2**40)
            ids = np.array([request.prompt_ids[0], rolled if sampling.temperature else 0])
            completions.append(Completion(ids, np.zeros(2, dtype=np.float32), "stop"))
        return completions


def half_right(response: str, problem: Problem, turns: Any) -> Future[ScoredText]:
    answer = f"{response} of {problem.ground_truth['target']}"
    scored: Future[ScoredText] = Future()
    scored.set_result(ScoredText(0.1, "wrong_value", answer, "7/2"))
    return scored


def ask(
    engine: DiceEngine, indices: Sequence[int], *, seed: int = 0, **changes: Any
) -> list[dict[str, Any]]:
    settings = EvaluationConfig(samples_per_problem=3, temperature=0.8, seed=seed, **changes)
    return evaluate_model(
        lambda requests, mode, problems: engine.generate(requests, settings.sampling(64, mode)),
        [prompted(index) for index in indices],
        decode=lambda ids: " ".join(map(str, ids)),
        score=half_right,
        other_scores={
            "verdict_strict": lambda response, truth: ScoredText(0.0, "no_answer", None),
            "verdict_lenient": lambda response, truth: ScoredText(1.0, "correct", None),
        },
        settings=settings,
    )


def test_sampled_evaluations_have_no_greedy_rows_and_the_same_samples():
    engine = DiceEngine()
    rows = ask(engine, [4, 9], decoding="sampled")
    assert engine.asked == [(0.8, 64, 6)]
    assert rows == [row for row in ask(engine, [4, 9]) if row["mode"] == "sampled"]


@pytest.mark.parametrize(
    ("changes", "protocol"),
    [
        ({"temperature": 0.6, "top_p": 0.9}, "greedy"),
        ({"decoding": "sampled"}, "mean of 4 samples, temperature 1"),
        (
            {"decoding": "sampled", "temperature": 0.6, "top_p": 0.95, "top_k": 20},
            "mean of 4 samples, temperature 0.6, top_p 0.95, top_k 20",
        ),
    ],
)
def test_a_protocol_in_words(changes, protocol):
    settings = EvaluationConfig(**changes)
    assert settings.protocol == protocol_of({"evaluation": changes}) == protocol
    assert settings.sampling(8, "greedy") == SamplingSettings(8, 0.0)
    expected = SamplingSettings(
        8, settings.temperature, changes.get("top_p", 1.0), changes.get("top_k", -1)
    )
    assert settings.sampling(8, "sampled") == expected
    assert protocol_of({}) == protocol_of({"evaluation": {"what": 1}}) == "greedy"


def test_samples_that_cannot_differ_are_refused():
    with pytest.raises(ValueError, match=r"top_k=1 makes all .* evaluation\.decoding=greedy"):
        EvaluationConfig(top_k=1)


def test_each_problem_is_asked_once_greedily_and_n_times_sampled():
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
        "answer": "9 0 of 9",
        "verdict": "wrong_value",
        "score": 0.1,
        "response_tokens": 2,
        "finish_reason": "stop",
        "value": "7/2",
        "verdict_strict": "no_answer",
        "verdict_lenient": "correct",
        "num_operands": 4,
        "ground_truth": '{"numbers": [1, 2, 3, 9], "target": 9}',
    }
    assert len({row["response"] for row in rows[2:]}) == 6


def test_a_problems_rows_depend_on_nothing_but_the_seed_and_itself():
    def of_problem(rows: list[dict[str, Any]], index: int) -> list[dict[str, Any]]:
        return [row for row in rows if row["prompt_index"] == index]

    alone = ask(DiceEngine(), [9])
    assert of_problem(ask(DiceEngine(), [4, 9, 5]), 9) == alone
    assert ask(DiceEngine(), [9], seed=1) != alone


def test_rows_come_back_from_their_file_with_nulls_where_an_older_version_wrote_it(tmp_path):
    rows = label_rows(ask(DiceEngine(), [4]), run_id="r", model="step_000007", step=7)
    file = tmp_path / "eval" / "step_000007.parquet"
    write_rows(rows, file)
    assert pq.read_schema(file).equals(EVALUATION)
    assert read_rows(file) == rows
    assert {(r["run_id"], r["model"], r["step"]) for r in rows} == {("r", "step_000007", 7)}
    assert [path.name for path in file.parent.iterdir()] == ["step_000007.parquet"]
    new = ["value", "verdict_strict", "verdict_lenient", "num_operands", "ground_truth"]
    assert EVALUATION.names[-7:] == [*new, "evaluation", "num_problems"]
    table = pa.Table.from_pylist(rows, schema=EVALUATION).drop_columns(new)
    pq.write_table(table, tmp_path / "old.parquet")
    assert read_rows(tmp_path / "old.parquet") == [row | dict.fromkeys(new) for row in rows]
