"""The solver against every expression there is, told apart by a way that knows no normal form."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.envs.countdown.arithmetic import evaluate, parse
from rl_core.envs.countdown.solving.form_values import FormValues
from rl_core.envs.countdown.solving.forms import form_at, form_text, num_forms
from rl_core.envs.countdown.solving.solution_texts import solution_texts
from rl_core.envs.countdown.solving.solver import (
    _is_first_of_equals,
    solve,
    solve_many,
    solve_range,
)
from tests.support.brute_force import brute_force


@pytest.mark.parametrize(
    ("numbers", "target", "count"),
    [
        ([7], 7, 1),
        ([7], 8, 0),
        ([2, 3], 6, 1),
        ([2, 3], 1, 1),  # 3 - 2, and not its mirror image 2 - 3
        ([1, 6], 6, 2),  # 1 * 6 and 6 / 1
        ([2, 2], 4, 2),  # 2 + 2 and 2 * 2
        ([4, 2, 1], 7, 2),  # 4 + 2 + 1 and 4 * 2 - 1, in whatever order
        ([3, 3, 8, 8], 24, 1),  # 8 / (3 - 8 / 3) alone
        ([1, 1, 1], 1, 4),  # 1 + 1 - 1, 1 * 1 * 1, 1 * 1 / 1, 1 / 1 / 1
        ([5, 5, 5], 5, 2),  # 5 + 5 - 5, 5 * 5 / 5
        ([5, 3, 3], 5, 2),  # 5 + 3 - 3, 5 * 3 / 3
        ([2, 2, 10], 10, 2),  # the sum and the product likewise
    ],
)
def test_counts_by_hand(numbers: list[int], target: int, count: int) -> None:
    text, found = solve(numbers, target)
    assert found == count
    if text is None:
        assert count == 0
    else:
        assert evaluate(text) == target
        assert sorted(parse(text)[0]) == sorted(numbers)


def test_number_of_forms_is_the_known_number_of_inequivalent_expressions() -> None:
    """OEIS A140606 counts 1, 6, 68, 1170, 27142; it tells a form with a minus from its opposite."""
    for size, known in enumerate([1, 6, 68, 1170, 27142], start=1):
        numbers = [101, 211, 307, 401, 503][:size]
        forms = [form_at(index, numbers) for index in range(num_forms(size))]
        assert len(set(forms)) == len(forms)
        assert len(forms) + sum("-" in form_text(form) for form in forms) == known


def assert_solved_as_by_brute_force(numbers: tuple[int, ...], high: int) -> None:
    truth = brute_force(numbers)
    rows = np.asarray([sorted(numbers)], dtype=np.int64)
    targets = np.arange(1, high + 1)
    solved = solve_many(rows, np.zeros(high, dtype=np.int64), targets)
    reached = set(solve_range(rows, low=1, high=high).targets.tolist())
    for target, (text, count) in zip(targets.tolist(), solved, strict=True):
        assert count == truth.get(target, 0), f"{numbers} -> {target}"
        assert (target in reached) == (count > 0)
        if text is not None:
            assert evaluate(text) == target
            assert sorted(parse(text)[0]) == sorted(numbers)


def test_all_triples_up_to_seven_equal_brute_force() -> None:
    for numbers in combinations_with_replacement(range(1, 8), 3):
        assert_solved_as_by_brute_force(numbers, 60)


@settings(max_examples=12)
@given(st.lists(st.integers(1, 12), min_size=4, max_size=4))
def test_four_numbers_equal_brute_force(numbers: list[int]) -> None:
    assert_solved_as_by_brute_force(tuple(numbers), 99)


@pytest.mark.parametrize("numbers", [(3, 3, 3, 3), (1, 1, 2, 2), (5, 5, 5, 7), (1, 2, 3, 4)])
def test_equal_numbers_equal_brute_force(numbers: tuple[int, ...]) -> None:
    assert_solved_as_by_brute_force(numbers, 99)


def test_the_largest_numbers_do_not_overflow() -> None:
    """Six numbers of 999 and less: int64 gives what Python's integers give, form by form."""
    column = [[994], [995], [996], [997], [998], [999]]
    positions = tuple(range(6))
    fast = FormValues(np.asarray(column, dtype=np.int64)).forms(positions)
    exact = FormValues(np.asarray(column, dtype=object)).forms(positions)
    for ours, truth in zip(fast, exact, strict=True):
        assert ours.shape == (num_forms(6), 1)
        assert (ours.astype(object) == truth).all()


@pytest.mark.parametrize(("size", "largest"), [(2, 999), (3, 999), (4, 999), (5, 999), (6, 99)])
def test_floats_are_exact(size: int, largest: int) -> None:
    """Where numbers are taken as floats, all monomials fit: form by form what integers give."""
    columns = np.arange(largest, largest - size, -1)[:, None]
    for whole, exact in zip(
        FormValues(columns.astype(np.float64)).forms(tuple(range(size))),
        FormValues(columns.astype(object)).forms(tuple(range(size))),
        strict=True,
    ):
        assert (whole == exact).all()
        assert all(abs(value) < 2**53 for value in exact.ravel())


@pytest.mark.parametrize("size", range(1, 7))
def test_pieces_are_the_forms(size: int) -> None:
    values = FormValues(np.asarray([[3], [7], [7], [11], [20], [1]][:size], dtype=np.int64))
    num, den = values.forms(tuple(range(size)))
    seen = np.zeros(num_forms(size), dtype=np.int64)
    for indices, own_num, own_den in values.pieces():
        seen[indices] += 1
        assert (num[indices] == own_num).all()
        assert (den[indices] == own_den).all()
    assert (seen == 1).all()


@pytest.mark.parametrize(
    "numbers", [[4, 4, 9], [2, 2, 2], [3, 3, 8, 8], [5, 7, 7, 7], [1, 1, 1, 1]]
)
def test_equal_numbers_leave_the_first_of_equal_forms(numbers: list[int]) -> None:
    pattern = sum(2**i for i in range(len(numbers) - 1) if numbers[i] == numbers[i + 1])
    forms = [form_at(index, numbers) for index in range(num_forms(len(numbers)))]
    first = [forms.index(form) == index for index, form in enumerate(forms)]
    assert _is_first_of_equals(len(numbers))[pattern].tolist() == first


def test_texts_written_together_are_those_of_each_form() -> None:
    """All forms over four numbers, equal ones too, and sums below and equal to zero."""
    sets = np.asarray([[1, 2, 3, 4], [3, 3, 8, 8], [2, 5, 7, 50], [6, 6, 6, 6], [1, 1, 2, 9]])
    numbers, forms = np.repeat(sets, num_forms(4), axis=0), np.tile(np.arange(num_forms(4)), 5)
    for row, index, text in zip(
        numbers.tolist(), forms.tolist(), solution_texts(numbers, forms), strict=True
    ):
        assert text == form_text(form_at(index, row))


def test_batches_do_not_change_results() -> None:
    rng = np.random.default_rng(0)
    numbers = np.sort(rng.integers(1, 30, (3_000, 4)), axis=1)  # several batches of 1,430 rows
    rows = rng.integers(0, 3_000, 500)
    targets = rng.integers(10, 100, 500)
    together = solve_many(numbers, rows, targets)
    for i in range(0, 500, 25):
        assert together[i] == solve(numbers[rows[i]].tolist(), int(targets[i]))
