"""Turns by hand: a scripted model whose tokens are characters, and an env that answers `?`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.text_env import EnvTurn
from rl_core.rollout.turns import TurnTaking, within_bounds
from rl_core.types import (
    Completion,
    FinishReason,
    GenerationRequest,
    Problem,
    SamplingSettings,
    Turn,
)
from tests.support.echo.env import EchoConfig
from tests.support.runs import run_config


def reply(env: EchoConfig, response: str, truth: Any) -> EnvTurn | None:
    """`?` is answered with the letter, and worth half a point where the letter was said."""
    if not response.endswith("?"):
        return None
    return EnvTurn(f"[{truth['letter']}]", 0.5 if response[-2:-1] == truth["letter"] else 0.0)


@pytest.fixture(autouse=True)
def echo_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EchoConfig, "stop", ("?",))
    monkeypatch.setattr(EchoConfig, "reply", reply)


class Scripted:
    """Continues with a text by the prompt it gets; `|` is the end of a text."""

    def __init__(self, script: dict[str, str]) -> None:
        self.script = script
        self.asked: list[list[GenerationRequest]] = []
        self.sampling: list[SamplingSettings] = []

    def __call__(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[tuple[int, Completion]]:
        self.asked.append(list(requests))
        self.sampling.append(sampling)
        ended = []
        for i, request in enumerate(requests):
            text = self.script[decode(request.prompt_ids)]
            limit = request.max_tokens or sampling.max_tokens
            reason: FinishReason = "stop" if len(text) <= limit else "length"
            ids = np.array(encode(text[:limit]))
            logprobs = -np.arange(1, len(ids) + 1, dtype=np.float32)
            ended.append((i, Completion(ids, logprobs, reason, policy_version=4)))
        return ended[::-1]  # the last one ends first


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def play(
    script: dict[str, str], *prompts: str, max_turns: int = 3, max_tokens: int = 20
) -> tuple[list[Completion], Scripted]:
    model = Scripted(script)
    taking = TurnTaking(EchoConfig(max_turns=max_turns), decode, encode)
    requests = [GenerationRequest(tuple(encode(p)), seed) for seed, p in enumerate(prompts)]
    problems = [Problem(i, "echo", (), {"letter": "x"}, 0) for i in range(len(prompts))]
    ended = dict(taking.play(model, requests, SamplingSettings(max_tokens), problems))
    assert sorted(ended) == list(range(len(prompts)))
    return [ended[i] for i in range(len(prompts))], model


def test_a_response_of_three_turns_by_hand():
    script = {"A": "ab?", "B": "no|", "Aab?[x]": "x?", "Aab?[x]x?[x]": "end|"}
    (three, one), model = play(script, "A", "B")
    assert decode(three.response_ids.tolist()) == "ab?[x]x?[x]end|"
    assert three.sampled.astype(int).tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1]
    assert three.logprobs.tolist() == [-1, -2, -3, 0, 0, 0, -1, -2, 0, 0, 0, -1, -2, -3, -4]
    assert three.logprobs.dtype == np.float32
    assert [(t.is_model, t.text, t.num_tokens, t.reward) for t in three.turns] == [
        (True, "ab?", 3, 0.0),
        (False, "[x]", 3, 0.0),
        (True, "x?", 2, 0.5),
        (False, "[x]", 3, 0.0),
        (True, "end|", 4, 0.0),
    ]
    assert three.num_sampled == 9
    assert three.finish_reason == "stop"
    assert three.policy_version == 4
    assert (decode(one.response_ids.tolist()), one.turns, one.num_sampled) == ("no|", (), 3)
    # Nobody is asked again who has ended, and what is left is less each time.
    assert [[r.max_tokens for r in asked] for asked in model.asked] == [[None, None], [14], [9]]
    assert {sampling.stop for sampling in model.sampling} == {("?",)}
    seeds = [asked[0].seed for asked in model.asked]
    assert len(set(seeds)) == 3


def test_after_the_last_turn_nothing_is_answered():
    script = {"A": "x?", "Ax?[x]": "x?", "B": "x?", "Bx?[x]": "!|"}
    (asks_on, ends), _ = play(script, "A", "B", max_turns=2)
    assert (decode(asks_on.response_ids.tolist()), asks_on.finish_reason) == ("x?[x]x?", "turns")
    # The turn is worth what it is worth, answered or not.
    assert [turn.reward for turn in asks_on.turns] == [0.5, 0.0, 0.5]
    assert (decode(ends.response_ids.tolist()), ends.finish_reason) == ("x?[x]!|", "stop")


@pytest.mark.parametrize(
    ("max_tokens", "expected", "reason"),
    [
        (2, "ab", "length"),  # cut before it could ask
        (3, "ab?", "length"),  # no room for the answer
        (6, "ab?", "length"),  # for the answer, and for nothing after it
        (7, "ab?[x]e", "length"),
        (9, "ab?[x]end", "length"),
        (10, "ab?[x]end|", "stop"),
    ],
)
def test_the_budget_is_of_all_turns_and_the_model_has_the_last_word(max_tokens, expected, reason):
    ((completion,), _) = play({"A": "ab?", "Aab?[x]": "end|"}, "A", max_tokens=max_tokens)
    assert (decode(completion.response_ids.tolist()), completion.finish_reason) == (
        expected,
        reason,
    )
    assert completion.sampled[-1]
    assert len(completion.logprobs) == len(completion.response_ids) <= max_tokens


def test_with_one_turn_as_of_an_env_that_answers_nothing_the_engine_is_asked_as_it_ever_was():
    (completion,), model = play({"A": "ab?"}, "A", max_turns=1)
    assert (completion.turns, completion.finish_reason) == ((), "stop")
    assert model.sampling == [SamplingSettings(20)]
    with pytest.raises(ValueError, match=r"env\.max_turns=2: env=gsm8k answers no response"):
        run_config(env={"name": "gsm8k", "max_turns": 2})


def earned(score: float, rewards: Sequence[float], full_score: float = 1.0) -> list[float]:
    turns = [Turn(True, 1, "x", reward) for reward in rewards]
    bounded = within_bounds(turns, score, full_score=full_score)
    assert [replace(turn, reward=0.0) for turn in bounded] == [Turn(True, 1, "x")] * len(turns)
    return [turn.reward for turn in bounded]


def test_what_turns_earn_by_hand():
    assert earned(0.125, [0.25, 0.0, 0.5]) == [0.25, 0.0, 0.5]
    assert earned(0.0, [0.75, 0.75, 0.5]) == [0.75, 0.25, 0.0]  # as one right answer, not more
    assert earned(1.0, [0.5, -0.25, 0.5]) == [0.0, -0.25, 0.25]
    assert earned(0.125, [-0.25, -0.25, 0.5]) == [-0.125, 0.0, 0.5]  # no worse than no answer
    assert earned(1.0, [0.5, 2.0], full_score=2.0) == [0.5, 0.5]
    # A user's function may go further than any rule: turns do not.
    assert earned(5.0, [1.0, -0.5]) == [0.0, -0.5]
    assert earned(-3.0, [-1.0, 0.5]) == [0.0, 0.5]


@given(
    score=st.floats(-1e3, 1e3),
    rewards=st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=8),
    full_score=st.floats(0.01, 100.0),
)
def test_no_turns_take_a_reward_beyond_the_bounds_of_one_turn(score, rewards, full_score):
    bounded = earned(score, rewards, full_score)
    reward = score
    for got, named in zip(bounded, rewards, strict=True):
        assert min(named, 0.0) - 1e-9 <= got <= max(named, 0.0) + 1e-9
        assert got == named or abs(got) <= abs(named) + 1e-9
        reward += got
        assert min(score, 0.0) - 1e-9 <= reward <= max(score, full_score) + 1e-9


@pytest.mark.parametrize(("text", "reward"), [("", 0.0), ("x", float("nan")), ("x", float("inf"))])
def test_an_env_that_says_nothing_or_pays_no_number_hears_so(text, reward):
    with pytest.raises(ValueError, match="it must say something, and its reward be finite"):
        EnvTurn(text, reward)
