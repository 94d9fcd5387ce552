"""Traces in words: what they write is true, tried once, and ends with the solution."""

from __future__ import annotations

import random
import re
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.countdown.scoring import evaluate, score_response
from rl_core.envs.countdown.traces import write_worded_trace

TRY = re.compile(
    r"\nTry (?P<text>[^:]+): (?P<steps>.+)\. (?P<verdict>Not|That is) (?P<target>\d+)\."
)


def value(text: str) -> Fraction:
    return evaluate(text.strip())


@given(st.integers(0, 10_000))
def test_every_step_is_true_and_the_last_try_alone_is_right(seed: int) -> None:
    numbers, target, solution = (44, 19, 35, 7), 105, "44 + 19 + 35 + 7"
    trace = write_worded_trace(numbers, target, solution, rng=random.Random(seed))
    tries = list(TRY.finditer(trace))
    assert "".join(t[0] for t in tries) + f"\n</think>\n<answer>{solution}</answer>" == trace
    for attempt in tries:
        assert attempt["target"] == str(target)
        steps = attempt["steps"].split(", ")
        assert all(value(left) == value(right) for left, right in (s.split(" = ") for s in steps))
        assert value(steps[-1].split(" = ")[1]) == value(attempt["text"])
        assert sorted(map(int, re.findall(r"\d+", attempt["text"]))) == sorted(numbers)
        assert (value(attempt["text"]) == target) == (attempt["verdict"] == "That is")
    texts = [attempt["text"] for attempt in tries]
    assert len(set(texts)) == len(texts) <= 11
    assert texts[-1] == solution
    assert score_response(trace, numbers, target).verdict == "correct"


def test_fractions_on_the_way_are_written_out() -> None:
    trace = write_worded_trace((8, 3, 3, 8), 24, "8 / (3 - 8 / 3)", rng=random.Random(0))
    assert "8 / 3 = 8/3, 3 - (8/3) = 1/3, 8 / (1/3) = 24. That is 24." in trace


def test_wrong_tries_are_three_on_average() -> None:
    rng = random.Random(0)
    traces = [write_worded_trace((3, 5, 7), 15, "3 + 5 + 7", rng=rng) for _ in range(500)]
    assert 2.3 < sum(trace.count(" Not ") for trace in traces) / 500 < 3.2


@given(st.integers(0, 10_000))
def test_a_blind_search_ends_at_its_first_right_try_or_answers_its_last_wrong_one(
    seed: int,
) -> None:
    numbers, target = (3, 5, 7), 15
    trace = write_worded_trace(
        numbers, target, "3 + 5 + 7", rng=random.Random(seed), give_up_prob=0.3
    )
    *before, last = TRY.finditer(trace)
    assert "".join(t[0] for t in (*before, last)) + (
        f"\n</think>\n<answer>{last['text']}</answer>"
    ) == (trace)
    assert all(attempt["verdict"] == "Not" for attempt in before)
    for attempt in (*before, last):
        steps = attempt["steps"].split(", ")
        assert all(value(left) == value(right) for left, right in (s.split(" = ") for s in steps))
        assert (value(attempt["text"]) == target) == (attempt["verdict"] == "That is")
    verdict = score_response(trace, numbers, target).verdict
    assert verdict == ("correct" if last["verdict"] == "That is" else "wrong_value")


def blind_traces(give_up_prob: float) -> list[str]:
    rng, solution = random.Random(0), "44 + 19 + 35 + 7"
    return [
        write_worded_trace((44, 19, 35, 7), 105, solution, rng=rng, give_up_prob=give_up_prob)
        for _ in range(2_000)
    ]


def test_giving_up_is_as_frequent_as_asked() -> None:
    traces = blind_traces(0.4)
    wrong = sum(trace.count(". Not 105.") for trace in traces)
    gave_up = sum("That is" not in trace for trace in traces)
    assert 0.36 < gave_up / wrong < 0.44


def test_a_blind_try_is_right_by_chance_alone() -> None:
    def hits_per_try(give_up_prob: float) -> float:
        traces = blind_traces(give_up_prob)
        return sum("That is" in t for t in traces) / sum(t.count("\nTry ") for t in traces)

    by_chance = hits_per_try(1e-9)  # a search that hardly gives up, so until it hits
    assert hits_per_try(0.0) > 0.2
    assert hits_per_try(0.4) < 0.12
    assert 0 < by_chance < 0.15
