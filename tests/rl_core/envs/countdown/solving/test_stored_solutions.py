"""Judged as columns, judged one by one by the scorer: always the same."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.countdown import score_response
from rl_core.envs.countdown.solving import stored_solutions
from rl_core.envs.countdown.solving.stored_solutions import judge_solutions, recount_solutions

Row = tuple[str | None, list[int | None] | None, int | None]


def judge(rows: list[Row]) -> list[bool]:
    texts, numbers, targets = zip(*rows, strict=True)
    return list(
        judge_solutions(
            pa.array(texts, pa.large_string()),
            pa.array(numbers, pa.list_(pa.int64())),
            pa.array(targets, pa.int64()),
        )
    )


def scorer(row: Row) -> bool:
    text, numbers, target = row
    if text is None or numbers is None or target is None:
        return False
    given_numbers = [number for number in numbers if number is not None]
    return score_response(f"<answer>{text}</answer>", given_numbers, target).verdict == "correct"


SHAPES = [
    "{} + {} - {}",
    "{} - ({} - {})",
    "{} / ({} / {})",
    "({} + {}) * {}",
    "-{} + {} * {}",
    "{} - {} / {}",
    "{} / ({} - {})",
    "-({} - {}) * {}",
    "{} * {}\t/ {}",
    "(({})) - {} - {}",
    "{}<answer>{} + {}",
    "{} {} {}",
    "{} ** {} + {}",
    "{} + {} + 0{}",
]


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows of few shapes, many of them wrong in one way or another."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    rows: list[Row] = []
    for shape in draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4)):
        for _ in range(draw(st.integers(1, 12))):
            numbers = [rng.choice([0, 1, 2, 3, 7, 12, 99, 100]) for _ in range(3)]
            text = shape.format(*numbers)
            scored = score_response(f"<answer>{text}</answer>", numbers, 0)
            target = scored.value if scored.value is not None else Fraction(rng.randint(-3, 9))
            if target.denominator == 1 and rng.random() < 0.8:
                wanted = int(target)
            else:
                wanted = int(target) + rng.randint(-1, 1)
            rng.shuffle(numbers)
            if rng.random() < 0.1:
                numbers[0] += 1
            if rng.random() < 0.1:
                numbers.append(5)
            rows.append((text, list(numbers), wanted))
    rng.shuffle(rows)
    return rows


@given(tables())
def test_columns_and_scorer_agree(rows: list[Row]) -> None:
    assert judge(rows) == [scorer(row) for row in rows]


@pytest.mark.parametrize(
    ("row", "correct"),
    [
        (("1 + 2 * 3", [3, 2, 1], 7), True),
        (("1 + 2 * 3", [3, 2, 1], 9), False),
        (("8 / (3 - 8 / 3)", [3, 3, 8, 8], 24), True),
        (("7 + 5 / (3 / (2 - 2))", [7, 5, 3, 2, 2], 7), False),  # 5 / (3 / 0) is no 0
        (("999 * 999 * 999 * 999 * 999 * 999", [999] * 6, 999**6), True),
        (("9 + 9 - 07", [9, 9, 7], 11), False),
        (("1 - 2", [2, 1], -1), True),
        (("1 + 2<answer>1 + 2", [1, 2], 3), True),  # the scorer reads the last tag
        (("5 + 5<answer>1 + 2", [5, 5, 1, 2], 10), False),
        (("5 + 5</answer>", [5, 5], 10), False),
        (("n + 5", [5], 5), False),
        (("4294967296 * 4294967296 + 5", [2**32, 2**32, 5], 5), False),  # 5 in 64 bits
        (("", [1], 1), False),
        (("1", [None, 1], 1), True),
        ((None, [1], 1), False),
        (("1", None, 1), False),
        (("1", [1], None), False),
    ],
)
def test_each_is_judged_as_the_scorer_does(row: Row, correct: bool) -> None:
    assert scorer(row) == correct
    assert judge([row] * 5) == [correct] * 5, "as columns"
    assert judge([row]) == [correct], "alone"


def test_one_wrong_text_among_many_is_found() -> None:
    rows: list[Row] = [
        (f"{a} + {b} - 1", [b, 1, a], a + b - 1) for a in range(10, 40) for b in (5, 8)
    ]
    rows[17] = (rows[17][0], rows[17][1], 99)
    assert np.flatnonzero(~np.array(judge(rows))).tolist() == [17]
    first_wrong: list[Row] = [(rows[0][0], rows[0][1], 98), *rows[1:]]
    assert np.flatnonzero(~np.array(judge(first_wrong))).tolist() == [0, 17]


def test_the_scorer_overrules_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rule the scorer may learn later, a shape whose first text it rejects is rejected."""

    def no_sums(response: str, *_: object) -> object:
        class Scored:
            verdict = "wrong_value" if "+" in response else "correct"

        return Scored

    monkeypatch.setattr(stored_solutions, "score_response", no_sums)
    assert (
        judge([("1 + 2", [1, 2], 3)] * 6 + [("3 - 2", [3, 2], 1)] * 6) == [False] * 6 + [True] * 6
    )


def test_slices_and_no_rows_are_read_right() -> None:
    texts = pa.array(["9", "1 + 2", "2 + 2", "3 + 2", "4 + 2", "0"], pa.large_string()).slice(1, 4)
    numbers = pa.array([[9], [1, 2], [2, 2], [3, 2], [4, 3], [0]], pa.list_(pa.int64())).slice(1, 4)
    targets = pa.array([9, 3, 4, 5, 6, 0], pa.int64()).slice(1, 4)
    assert judge_solutions(texts, numbers, targets).tolist() == [True, True, True, False]
    assert len(judge_solutions(texts[:0], numbers[:0], targets[:0])) == 0


def test_recounts_are_the_solvers() -> None:
    assert recount_solutions([[1, 2, 3], [5, 5, 5]], [6, 98]) == [3, 0]  # 1+2+3, 1*2*3, 2*3/1
