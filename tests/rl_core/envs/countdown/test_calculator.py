from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.countdown.scoring import (
    CALL_CLOSE,
    CALL_OPEN,
    MAX_LENGTH,
    answer_call,
    score_response,
    turns_of,
)
from rl_core.envs.countdown.traces import check_response, write_trace


@pytest.mark.parametrize(
    ("response", "said"),
    [
        ("try <calc>3*7</calc>", "21"),
        ("<calc> (3 + 4) / 2 </calc>\n", "7/2"),  # the closing token held a new line too
        ("<calc>1+1</calc>2 and <calc>2-5</calc>", "-3"),
        ("<calc>1+1</calc>2 and", None),  # answered before: the response is over
        ("<answer>3*7</answer>", None),
        ("<calc>3*7", None),
        ("</calc>", "error"),
        ("<calc>7/0</calc>", "error"),
        ("<calc>2**99</calc>", "error"),
        ("<calc>__import__('os')</calc>", "error"),
        ("<calc></calc>", "error"),
        ("<calc>1<calc>2+2</calc>", "4"),
    ],
)
def test_answers_by_hand(response: str, said: str | None) -> None:
    assert answer_call(response) == said


@given(st.text(st.sampled_from("<calc>/0123456789+-*()x \n")), st.booleans())
def test_any_text_has_an_answer_that_is_short(text: str, is_call: bool) -> None:
    said = answer_call(f"{CALL_OPEN}{text}{CALL_CLOSE}" if is_call else text)
    assert said is None or said == "error" or Fraction(said) is not None
    assert said is None or len(said) <= 2 * MAX_LENGTH


@pytest.mark.timeout(10)
def test_a_long_text_of_tags_is_read_once() -> None:
    tags = CALL_OPEN * 100_000
    assert answer_call(tags) is None
    assert answer_call(tags + CALL_CLOSE) == "error"
    assert answer_call(CALL_CLOSE * 100_000) == "error"
    assert answer_call(f"{CALL_OPEN}{'9*' * 90_000}9{CALL_CLOSE}") == "error"


def test_traces_ask_for_every_value_and_are_answered_as_the_env_would() -> None:
    rng = random.Random(0)
    for _ in range(200):
        numbers, target = [rng.randint(1, 99) for _ in range(3)], rng.randint(1, 999)
        seed = rng.random()
        plain, calls = (
            write_trace(numbers, target, give_up_prob=0.2, rng=random.Random(seed), calls=calls)
            for calls in (False, True)
        )
        assert (plain.solved, plain.exhausted) == (calls.solved, calls.exhausted)
        # The same search, and the same answer at its end.
        assert check_response(plain.text) == check_response(calls.text)
        check = check_response(calls.text)
        assert check.num_equations == check.num_true_equations == calls.text.count(CALL_OPEN)
        verdicts = {score_response(t.text, numbers, target).verdict for t in (plain, calls)}
        assert len(verdicts) == 1
        assert ("correct" in verdicts) == plain.solved
        turns = turns_of(calls.text)
        assert "".join(turns) == calls.text
        for i in range(1, len(turns), 2):
            assert answer_call("".join(turns[:i])) == turns[i]
        assert answer_call(calls.text) is None
    assert turns_of(plain.text) == ()
