"""The solver against every expression there is, told apart by a way that knows no normal form."""

from itertools import combinations_with_replacement

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_core.envs.countdown.forms import form_trees, form_values, num_forms
from rl_core.envs.countdown.scoring import parse
from rl_core.envs.countdown.solver import solve_many, solve_range
from tests.support.brute_force import brute_force
from tests.support.solving import evaluate, solve


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
def test_counts_by_hand(numbers, target, count):
    text, found = solve(numbers, target)
    assert found == count
    if text is None:
        assert count == 0
    else:
        assert evaluate(text) == target
        assert sorted(parse(text)[0]) == sorted(numbers)


def test_number_of_forms_is_the_known_number_of_inequivalent_expressions():
    """OEIS A140606 counts 1, 6, 68, 1170, 27142; it tells a form with a minus from its opposite."""
    for size, known in enumerate([1, 6, 68, 1170, 27142], start=1):
        trees = form_trees(size)
        assert len(set(trees)) == len(trees) == num_forms(size)
        assert len(trees) + sum("'-'" in str(tree) for tree in trees) == known


def assert_solved_as_by_brute_force(numbers: tuple[int, ...], high: int) -> None:
    truth = brute_force(numbers)
    rows = np.asarray([sorted(numbers)], dtype=np.int64)
    targets = np.arange(1, high + 1)
    solved = solve_many([numbers] * high, targets.tolist())
    reached = set(solve_range(rows, low=1, high=high).targets.tolist())
    for target, (text, count) in zip(targets.tolist(), solved, strict=True):
        assert count == truth.get(target, 0), f"{numbers} -> {target}"
        assert (target in reached) == (count > 0)
        if text is not None:
            assert evaluate(text) == target
            assert sorted(parse(text)[0]) == sorted(numbers)
            assert "(-" not in text
            assert not text.startswith("-")


def test_all_triples_up_to_seven_equal_brute_force():
    for numbers in combinations_with_replacement(range(1, 8), 3):
        assert_solved_as_by_brute_force(numbers, 60)


@settings(max_examples=12)
@given(st.lists(st.integers(1, 12), min_size=4, max_size=4))
@example([3, 3, 3, 3])
@example([1, 1, 2, 2])
@example([5, 5, 5, 7])
def test_four_numbers_equal_brute_force(numbers):
    assert_solved_as_by_brute_force(tuple(numbers), 99)


@pytest.mark.parametrize(
    ("size", "largest", "kind"),
    [(6, 999, np.int64), *((n, 999, np.float64) for n in range(2, 6)), (6, 99, np.float64)],
)
def test_the_largest_numbers_are_exact(size, largest, kind):
    """Form by form what Python's integers give, without overflow or rounding."""
    columns = np.arange(largest, largest - size, -1)[:, None]
    fast, exact = (list(form_values(columns.astype(dtype))) for dtype in (kind, object))
    assert sum(len(num) for num, _ in fast) == num_forms(size)
    for ours, truth in zip(fast, exact, strict=True):
        for own, other in zip(ours, truth, strict=True):
            assert (own == other).all()
            assert kind is np.int64 or all(abs(value) < 2**53 for value in other.ravel())


@pytest.mark.parametrize(
    ("numbers", "target", "text"),
    [
        ([2, 3], 1, "3 - 2"),
        ([3, 3, 8, 8], 24, "8 / (3 - 8 / 3)"),
        ([50, 2, 1], 49, "1 + 50 - 2"),
        ([97, 89, 83, 2], 332, "83 * (97 - 89) / 2"),
        ([7, 11, 97, 50], 188, "(11 - 7) * (97 - 50)"),
    ],
)
def test_texts_by_hand(numbers, target, text):
    assert solve(numbers, target)[0] == text


def test_batches_do_not_change_results():
    rng = np.random.default_rng(0)
    numbers = np.sort(rng.integers(1, 30, (3_000, 4)), axis=1)  # several batches of 715 rows
    targets = rng.integers(10, 100, 3_000)
    together = solve_many(numbers.tolist(), targets.tolist())
    for i in range(0, 3_000, 150):
        assert together[i] == solve(numbers[i].tolist(), int(targets[i]))


def test_problems_of_different_sizes_are_solved_together():
    numbers = [[1, 2, 3], [7], [3, 3, 8, 8], [1, 6], [2, 2, 2, 2, 2, 2]]
    targets = [6, 8, 24, 10**17, 12]
    counts = [count for _, count in solve_many(numbers, targets)]
    assert counts[:4] == [3, 0, 1, 0]  # 1+2+3, 1*2*3, 2*3/1
    assert counts[4] == solve(numbers[4], 12)[1]
    assert solve_many([], []) == []
