"""Traces in words: what they write is true, tried once, and ends with the solution."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

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


@given(st.integers(0, 10_000))
def test_every_step_is_true_and_the_last_try_alone_is_right(seed: int) -> None:
    numbers, target, solution = (44, 19, 35, 7), 105, "44 + 19 + 35 + 7"
    trace = write_worded_trace(numbers, target, solution, rng=random.Random(seed))
    verdicts, answer = read_trace(trace, numbers, target)
    assert verdicts == ["no"] * (len(verdicts) - 1) + ["yes"]
    assert answer == "44+19+35+7"
    assert score_response(trace, numbers, target).verdict == "correct"


def test_fractions_on_the_way_are_written_out() -> None:
    trace = write_worded_trace((8, 3, 3, 8), 24, "8 / (3 - 8 / 3)", rng=random.Random(0))
    assert "\n8/3=8/3, 3-(8/3)=1/3, 8/(1/3)=24 yes\n" in trace


def test_wrong_tries_are_three_on_average() -> None:
    rng = random.Random(0)
    traces = [write_worded_trace((3, 5, 7), 15, "3 + 5 + 7", rng=rng) for _ in range(500)]
    assert 2.3 < sum(trace.count(" no\n") for trace in traces) / 500 < 3.2


@given(st.integers(0, 10_000))
def test_a_blind_search_ends_at_its_first_right_try_or_answers_its_last_wrong_one(
    seed: int,
) -> None:
    numbers, target, rng = (3, 5, 7), 15, random.Random(seed)
    trace = write_worded_trace(numbers, target, "3 + 5 + 7", rng=rng, give_up_prob=0.3)
    (*before, last), _ = read_trace(trace, numbers, target)
    assert set(before) <= {"no"}
    verdict = score_response(trace, numbers, target).verdict
    assert verdict == ("correct" if last == "yes" else "wrong_value")


def blind_traces(give_up_prob: float) -> list[str]:
    rng, solution = random.Random(0), "44 + 19 + 35 + 7"
    return [
        write_worded_trace((44, 19, 35, 7), 105, solution, rng=rng, give_up_prob=give_up_prob)
        for _ in range(2_000)
    ]


def test_giving_up_is_as_frequent_as_asked() -> None:
    traces = blind_traces(0.4)
    wrong = sum(trace.count(" no\n") for trace in traces)
    gave_up = sum(" yes\n" not in trace for trace in traces)
    assert 0.36 < gave_up / wrong < 0.44


def test_a_blind_try_is_right_by_chance_alone() -> None:
    def hits_per_try(give_up_prob: float) -> float:
        traces = blind_traces(give_up_prob)
        return sum(" yes\n" in t for t in traces) / sum(len(TRY.findall(t)) for t in traces)

    by_chance = hits_per_try(1e-9)  # a search that hardly gives up, so until it hits
    assert hits_per_try(0.0) > 0.2
    assert hits_per_try(0.4) < 0.12
    assert 0 < by_chance < 0.15
