"""What the worst text can cost: counted in lines of Python that run, not in seconds."""

import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.countdown import scoring
from rl_core.envs.countdown.scoring import score_response

MAX_LINES = 50 * scoring.MAX_LENGTH
"""Lines of Python for any text: a few dozen for each character that the parser reads."""
HOSTILE = [
    "<answer>" * 100_000,
    "</answer>" * 100_000,
    "<answer>" * 100_000 + "</answer>",
    "<answer" * 100_000 + "</answer" * 100_000,
    "<" * 1_000_000,
    "\n" * 1_000_000,
    "\x00" * 1_000_000,
    *(
        f"<answer>{inner}</answer>"
        for inner in (
            "(" * 100_000,
            "(" * 100_000 + "1" + ")" * 100_000,
            "()" * 128,
            "(" * 256,
            "-" * 256,
            "9**9" * 100_000,
            "9**9**9",
            "1" * 100_000,
            "9" * 256,
            "9*" * 127 + "9",
            "1/" * 127 + "3",
            "7/3+" * 63 + "5/9",
            "0" * 256,
            " " * 100_000,
            " " * 256,
            "\u0663" * 256,
            "\ud800" * 256,
            "1\x00+\x002",
        )
    ),
]


def lines_run(response: str, mode: Any) -> int:
    """Lines of its module that scoring runs, nothing remembered from before."""
    scoring.compiled.cache_clear()
    files = {scoring.__file__}
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        score_response(response, [9, 9, 9], 9, answer_from=mode)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("mode", ["anywhere", "last_line"])
@pytest.mark.parametrize("response", HOSTILE, ids=lambda text: ascii(text[:16]))
def test_no_text_costs_more_than_the_longest_expression(response, mode):
    assert lines_run(response, mode) <= MAX_LINES
    if len(response) > 2 * scoring.MAX_LENGTH:
        # Beyond the limit only C's linear searches see more of it.
        assert lines_run(response + response, mode) <= lines_run(response, mode) + 1


@given(st.text(alphabet="0123456789+-*/() ", max_size=scoring.MAX_LENGTH))
def test_lines_grow_with_the_length_of_the_answer(inner):
    assert lines_run(f"<answer>{inner}</answer>", "anywhere") <= 60 + 45 * len(inner)


def test_what_is_remembered_is_bounded():
    for i in range(3 * scoring.CACHED_SKELETONS):
        score_response(f"<answer>{'(' * (i % 30)}{'x' * (i % 200)} {i:b}</answer>", [1], 1)
        score_response(f"<answer>{i} / 7</answer>", [i, 7], 1)
    assert scoring.compiled.cache_info().currsize <= scoring.CACHED_SKELETONS
    values = scoring._as_int.cache_info()
    assert values.maxsize is not None
    assert values.currsize <= values.maxsize


pieces = st.one_of(
    st.sampled_from(["<answer>", "</answer>", "\n", "1", "+", "(", ")", "-", "/0", " ", "00", "7"]),
    st.sampled_from(["\u0663", "\ud800", "\x00", "\x1c", "\u00a0", "<answer>" * 50, "(" * 40]),
    st.text(st.characters(exclude_categories=()), max_size=5),
)


@given(st.lists(pieces, max_size=40).map("".join), st.sampled_from(["anywhere", "last_line"]))
def test_any_text_has_a_score_that_no_memory_of_others_changes(response, mode):
    remembered = score_response(response, [1, 7], 8, answer_from=mode)
    scoring.compiled.cache_clear()
    assert score_response(response, [1, 7], 8, answer_from=mode) == remembered
    assert remembered.score == {"no_answer": 0.0, "correct": 1.0}.get(remembered.verdict, 0.1)
    assert (remembered.value is not None) == (remembered.verdict in ("correct", "wrong_value"))
