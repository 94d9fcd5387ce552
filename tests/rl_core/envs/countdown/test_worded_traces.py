"""Searches for pretrained models: what they write is true, tried once, and right by chance."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.countdown.scoring import evaluate, score_response
from rl_core.envs.countdown.traces import write_worded_trace

TRY = re.compile(r"\n(?P<steps>[^ ].+) (?P<verdict>no|yes)(?=\n)")


def value(text: str) -> Fraction:
    return evaluate(text.strip())


def read_try(attempt: re.Match[str], numbers: Sequence[int]) -> Fraction:
    """Returns what a try makes, once its steps are true and take each number and result once."""
    left = Counter(Fraction(number) for number in numbers)
    for step in attempt["steps"].split(", "):
        asked, result = step.split("=")
        assert value(asked) == value(result)
        operation = re.fullmatch(r"(\d+|\(.+\))[-+*/](\d+|\(.+\))", asked)
        assert operation is not None
        left.subtract(map(value, operation.groups()))
        assert min(left.values()) >= 0
        left[value(result)] += 1
    (made,) = left.elements()
    return made


def read_trace(trace: str, numbers: Sequence[int], target: int) -> tuple[list[str], str]:
    """Returns the verdicts and the answer of a trace, which holds nothing else."""
    tries = list(TRY.finditer(trace))
    *_, answer = re.split("<answer>|</answer>", trace.removesuffix("</answer>"))
    assert "".join(t[0] for t in tries) + f"\n</think>\n<answer>{answer}</answer>" == trace
    for attempt in tries:
        made = read_try(attempt, numbers)
        assert (made == target) == (attempt["verdict"] == "yes")
    assert made == value(answer), "the answer is the last try"
    assert len({attempt["steps"] for attempt in tries}) == len(tries) <= 11
    return [attempt["verdict"] for attempt in tries], answer


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.3]))
def test_a_search_ends_at_its_first_right_try_or_answers_its_last_wrong_one(
    seed: int, give_up_prob: float
) -> None:
    numbers, target, rng = (3, 5, 7), 15, random.Random(seed)
    trace = write_worded_trace(numbers, target, give_up_prob=give_up_prob, rng=rng)
    (*before, last), _ = read_trace(trace, numbers, target)
    assert set(before) <= {"no"}
    verdict = score_response(trace, numbers, target).verdict
    assert verdict == ("correct" if last == "yes" else "wrong_value")
    assert give_up_prob or last == "yes" or len(before) == 9


def test_where_few_tries_are_possible_a_search_ends_without_repeating_one() -> None:
    trace = write_worded_trace((2, 3), 9, give_up_prob=0.0, rng=random.Random(0))
    verdicts, _ = read_trace(trace, (2, 3), 9)
    assert verdicts == ["no"] * 3
    assert {line for line in trace.split("\n") if "=" in line} == {
        "3+2=5 no",
        "3-2=1 no",
        "3*2=6 no",
    }


def traces(give_up_prob: float) -> list[str]:
    rng = random.Random(0)
    return [
        write_worded_trace((44, 19, 35, 7), 105, give_up_prob=give_up_prob, rng=rng)
        for _ in range(2_000)
    ]


def test_giving_up_is_as_frequent_as_asked() -> None:
    wrong = sum(trace.count(" no\n") for trace in traces(0.4))
    gave_up = sum(" yes\n" not in trace for trace in traces(0.4))
    assert 0.36 < gave_up / wrong < 0.44


@pytest.mark.parametrize("give_up_prob", [0.0, 0.4])
def test_a_try_is_right_by_chance_alone(give_up_prob: float) -> None:
    tries = [verdict for trace in traces(give_up_prob) for _, verdict in TRY.findall(trace)]
    assert 0 < tries.count("yes") / len(tries) < 0.12
