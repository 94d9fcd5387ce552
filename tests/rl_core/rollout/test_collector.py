from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_core.rewards.scoring import start_rewards
from rl_core.rollout.collector import (
    Collected,
    Collector,
    Stream,
    _teaches,
    build_requests,
    reward_metrics,
)
from rl_core.rollout.turns import TurnTaking
from rl_core.types import (
    Completion,
    GenerationRequest,
    Problem,
    PromptedProblem,
    Rollout,
    SamplingSettings,
    ScoredText,
)
from tests.support.runs import run_config

TEXTS = {1: "<answer>1 + 2</answer>", 2: "<answer>2 + 1 + 1</answer>", 3: "no idea"}
CORRECT, WRONG, NONE = TEXTS
COMPLETION = Completion(np.array([1]), np.array([-1.0], dtype=np.float32), "stop")
FAILED = ScoredText(0.0, "reward_error", None)


def problem(index: int) -> PromptedProblem:
    truth = {"target": 3, "numbers": [1, 2]}
    return PromptedProblem(Problem(index, "countdown", (), truth, 1), f"p{index}", (index,))


PROBLEMS = [problem(index) for index in range(20)]


class ScriptedEngine:
    """Answers each problem's samples with given tokens; those not named have no spread."""

    def __init__(self, answers: dict[int, list[int]]) -> None:
        self._answers = answers
        self.asked: list[list[int]] = []

    def __call__(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[tuple[int, Completion]]:
        self.asked.append([request.prompt_ids[0] for request in requests])
        seen: dict[int, int] = {}
        completions = []
        for request in requests:
            index = request.prompt_ids[0]
            sample = seen[index] = seen.get(index, -1) + 1
            token = self._answers.get(index, [NONE, NONE])[sample]
            ids, logprobs = np.array([token]), np.array([-1.0], dtype=np.float32)
            completions.append(Completion(ids, logprobs, "stop"))
        return list(enumerate(completions))[::-1]  # the last one ends first


def run(
    engine: Stream,
    chosen: list[int],
    problems: Sequence[PromptedProblem] = PROBLEMS,
    spares: Sequence[int] = (),
    **algorithm: Any,
) -> Collected:
    config = run_config(
        algorithm={"estimator": "grpo", "group_size": 2, "kl_mode": "none"} | algorithm,
        data={"train_batch_size": 128},
    )
    with start_rewards(config.env, config.reward) as rewards:
        collector = Collector(
            config,
            problems,
            engine,
            TurnTaking(config.env, lambda ids: " ".join(map(TEXTS.get, ids)), lambda text: []),
            rewards=rewards,
        )
        return collector.collect(
            chosen,
            7,
            spares=lambda step: spares or [*range(len(problems))],
            clock=lambda phase: nullcontext(),
        )


def test_each_sample_has_a_seed_of_its_own_whatever_stands_beside_it():
    asked = build_requests(PROBLEMS[:3], group_size=4, seed=5, step=7)
    assert len({request.seed for request in asked}) == 12
    assert build_requests(PROBLEMS[1:2], group_size=4, seed=5, step=7) == asked[4:8]
    later = build_requests(PROBLEMS[:3], group_size=4, seed=5, step=8)
    assert not {request.seed for request in asked} & {request.seed for request in later}


def test_an_answer_is_scored_against_its_own_problem():
    four = Problem(0, "countdown", (), {"target": 4, "numbers": [2, 1, 1]}, 1)
    problems = [PromptedProblem(four, "p0", (0,)), problem(1)]
    engine = ScriptedEngine({0: [WRONG] * 2, 1: [CORRECT] * 2})  # "wrong" is 4
    verdicts = [rollout.scored.verdict for rollout in run(engine, [0, 1], problems).rollouts]
    assert verdicts == ["correct"] * 4


def test_without_resampling_the_batch_is_what_was_asked():
    engine = ScriptedEngine({4: [CORRECT, WRONG]})
    collected = run(engine, [4, 9])
    assert engine.asked == [[4, 4, 9, 9]]
    assert [r.problem.index for r in collected.rollouts] == [4, 4, 9, 9]
    assert [r.scored.score for r in collected.rollouts] == [1.0, 0.1, 0.0, 0.0]
    assert collected.metrics["reward/accuracy"] == 0.25
    assert "group/replaced_frac" not in collected.metrics
    assert collected.metrics["rollout/tokens_per_s"] > 0


def test_groups_without_spread_are_replaced_by_whole_groups_that_have_some():
    # Of all other problems, the even ones from 10 on have spread.
    spread = {4: [CORRECT, WRONG]} | {i: [NONE, CORRECT] for i in range(10, 20, 2)}
    engine = ScriptedEngine(spread)
    collected = run(engine, [4, 9, 5], resample_rounds=20)
    indices = [r.problem.index for r in collected.rollouts]
    assert indices[:2] == [4, 4]
    assert all(index in spread for index in indices)
    assert indices[::2] == indices[1::2]
    assert len(set(indices)) == 3
    assert [r.group_id for r in collected.rollouts] == [0, 0, 1, 1, 2, 2]
    assert [r.sample_index for r in collected.rollouts] == [0, 1] * 3
    assert collected.metrics["group/replaced_frac"] == pytest.approx(2 / 3)
    # The accuracy is that of the three problems of the batch: one correct of six.
    assert collected.metrics["reward/accuracy"] == pytest.approx(1 / 6)
    everyone = [index for asked in engine.asked for index in asked]
    assert all(everyone.count(index) == 2 for index in everyone)  # nobody is asked twice


@pytest.mark.parametrize("gate", [True, False])
def test_a_group_that_the_outcome_gate_closes_is_replaced(gate):
    engine = ScriptedEngine({4: [NONE, WRONG], 6: [CORRECT, WRONG], 7: [WRONG, NONE]})
    collected = run(engine, [4], resample_rounds=20, outcome_gate=gate)
    assert {r.problem.index for r in collected.rollouts} == ({6} if gate else {4})


def test_replacements_are_taken_in_the_order_of_the_spares():
    engine = ScriptedEngine({3: [CORRECT, WRONG]})
    run(engine, [4, 9], resample_rounds=2, spares=[9, 17, 2, 4, 3, 11])
    assert engine.asked == [[4, 4, 9, 9], [17, 17, 2, 2], [3, 3, 11, 11]]


def test_a_group_whose_spread_is_a_reward_that_failed_teaches_nothing():
    failed = Rollout(problem(1).problem, 0, 0, "", (1,), COMPLETION, "", FAILED)
    right = replace(failed, scored=ScoredText(1.0, "correct", None))
    config = run_config(algorithm={"estimator": "grpo", "group_size": 3, "kl_mode": "none"})
    assert not _teaches([right, right, failed], 0, config)
    half = replace(right, scored=ScoredText(0.5, "correct", None))
    assert _teaches([right, right, half], 0, config)
    nearly = replace(right, scored=ScoredText(1.0 - 1e-7, "correct", None))
    assert not _teaches([right, right, nearly], 0, config)  # nor would the learner
    of_verdicts = {"estimator": "maxrl", "group_size": 3, "kl_mode": "none"}
    assert not _teaches([right, right, half], 0, run_config(algorithm=of_verdicts))
    assert _teaches([right, replace(right, scored=ScoredText(0.0, "x", None)), failed], 0, config)


def test_the_mean_of_each_reward_is_a_metric_without_the_responses_that_failed():
    scored = [ScoredText(s, "correct", None, rewards=(("f", s), ("g", 0.5))) for s in (1.0, 0.25)]
    rollouts = [
        Rollout(problem(1).problem, 0, i, "", (1,), COMPLETION, "", one)
        for i, one in enumerate([*scored, FAILED])
    ]
    metrics = reward_metrics(rollouts)
    assert (metrics["reward/f/mean"], metrics["reward/g/mean"]) == (0.625, 0.5)
    assert not {name for name in reward_metrics(rollouts[2:]) if name.endswith("g/mean")}


def test_rounds_and_problems_are_limited_and_the_same_step_draws_the_same_again():
    engine = ScriptedEngine({})
    collected = run(engine, [4, 9, 5], resample_rounds=2)
    assert [len(asked) for asked in engine.asked] == [6, 6, 6]
    assert [r.problem.index for r in collected.rollouts] == [4, 4, 9, 9, 5, 5]
    assert collected.metrics["group/replaced_frac"] == 0.0
    again = ScriptedEngine({})
    run(again, [4, 9, 5], resample_rounds=2)
    assert again.asked == engine.asked
    exhausted = ScriptedEngine({})
    run(exhausted, list(range(18)), resample_rounds=50)
    assert [len(asked) for asked in exhausted.asked] == [36, 4]
