"""The solver against every expression there is, told apart by a way that knows no normal form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import combinations_with_replacement, permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.envs.arithmetic import evaluate, parse
from rl_core.envs.forms import form_at, form_text, num_forms
from rl_core.envs.solver import _Sweep, reachable, solve, solve_many

PRIME = 2**61 - 1
POINTS = (1234567890123456789, 987654321987654321, 314159265358979323, 271828182845904523)


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
        assert sorted(parse(text).numbers) == sorted(numbers)


def test_number_of_forms_is_the_known_number_of_inequivalent_expressions() -> None:
    """OEIS A140606 counts 1, 6, 68, 1170, 27142; it tells a form with a minus from its opposite."""
    for size, known in enumerate([1, 6, 68, 1170, 27142], start=1):
        numbers = [101, 211, 307, 401, 503][:size]
        forms = [form_at(index, numbers) for index in range(num_forms(size))]
        assert len(set(forms)) == len(forms)
        assert len(forms) + sum("-" in form_text(form) for form in forms) == known


Known = tuple[Fraction, tuple[int, ...]]


def brute_force(numbers: tuple[int, ...]) -> dict[int, int]:
    """Number of different solutions of each positive integer, from all binary expressions.

    Beside its value an expression carries fingerprints: its value modulo a prime with a fixed huge
    number in place of each position, under every exchange of equal numbers. Two expressions with
    the same set of fingerprints are the same rational function (but for a chance of 1e-18).
    """
    size = len(numbers)
    exchanges = [
        order
        for order in permutations(range(size))
        if all(numbers[i] == numbers[j] for i, j in enumerate(order))
    ]

    @cache
    def expressions(positions: tuple[int, ...]) -> frozenset[Known]:
        if len(positions) == 1:
            (position,) = positions
            prints = tuple(POINTS[order[position]] for order in exchanges)
            return frozenset({(Fraction(numbers[position]), prints)})
        found: set[Known] = set()
        for mask in range(1, 2 ** len(positions) - 1):
            left = tuple(p for i, p in enumerate(positions) if mask >> i & 1)
            right = tuple(p for i, p in enumerate(positions) if not mask >> i & 1)
            for x, y in product(expressions(left), expressions(right)):
                found |= set(combinations_of(x, y))
        return frozenset(found)

    solutions: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for value, prints in expressions(tuple(range(size))):
        if value > 0 and value.denominator == 1:
            solutions[int(value)].add(tuple(sorted(prints)))
    return {target: len(found) for target, found in solutions.items()}


def combinations_of(x: Known, y: Known) -> Iterator[Known]:
    (a, prints_a), (b, prints_b) = x, y
    pairs = list(zip(prints_a, prints_b, strict=True))
    yield a + b, tuple((p + q) % PRIME for p, q in pairs)
    yield a - b, tuple((p - q) % PRIME for p, q in pairs)
    yield a * b, tuple(p * q % PRIME for p, q in pairs)
    if b != 0:
        yield a / b, tuple(p * pow(q, -1, PRIME) % PRIME for p, q in pairs)


def assert_solved_as_by_brute_force(numbers: tuple[int, ...], high: int) -> None:
    truth = brute_force(numbers)
    rows = np.asarray([sorted(numbers)], dtype=np.int64)
    targets = np.arange(1, high + 1)
    solved = solve_many(rows, np.zeros(high, dtype=np.int64), targets)
    can_reach = reachable(rows, low=1, high=high)[0]
    for target, (text, count), can in zip(targets.tolist(), solved, can_reach, strict=True):
        assert count == truth.get(target, 0), f"{numbers} -> {target}"
        assert bool(can) == (count > 0)
        if text is not None:
            assert evaluate(text) == target
            assert sorted(parse(text).numbers) == sorted(numbers)


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
    fast = _Sweep(np.asarray(column, dtype=np.int64)).forms(positions)
    exact = _Sweep(np.asarray(column, dtype=object)).forms(positions)
    for ours, truth in zip(fast, exact, strict=True):
        assert ours.shape == (num_forms(6), 1)
        assert (ours.astype(object) == truth).all()


def test_batches_do_not_change_results() -> None:
    rng = np.random.default_rng(0)
    numbers = np.sort(rng.integers(1, 30, (900, 4)), axis=1)  # several batches of 357 rows
    rows = np.sort(rng.integers(0, 900, 500))
    targets = rng.integers(10, 100, 500)
    together = solve_many(numbers, rows, targets)
    for i in range(0, 500, 25):
        assert together[i] == solve(numbers[rows[i]].tolist(), int(targets[i]))
