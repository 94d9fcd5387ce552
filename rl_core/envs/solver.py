"""Proves that Countdown problems are solvable and counts their solutions, many at a time (stage 1).

Solutions are counted in the normal form that `forms` states. Values of all forms are computed as
arrays over forms and rows, in the order of `forms`, so one sweep of numpy solves a whole batch of
problems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rl_core.envs.forms import (
    Positions,
    form_at,
    form_text,
    has_divisor,
    num_factors,
    num_forms,
    splits,
)

Ints: TypeAlias = npt.NDArray[np.int64]
Fractions: TypeAlias = tuple[Ints, Ints]
"""num and den, int64 [forms, rows], not reduced; a den of 0 means a division by zero.

They cannot overflow: each number occurs at most once in every monomial of num and den, and only the
plain product of up to 6 numbers below 1,000 (hence below 1e18) has all of them.
"""

_BATCH_VALUES = 1 << 18


def solve(numbers: Sequence[int], target: int) -> tuple[str | None, int]:
    """Returns one solution as text and the number of distinct ones.

    Args:
        numbers: 1 to 6 integers in 1..999, each to be used exactly once.
        target: a positive integer.

    Returns:
        The text, None where there is no solution, and the count.
    """
    ((text, count),) = solve_many(
        np.sort(np.asarray([numbers], dtype=np.int64), axis=1),
        np.zeros(1, dtype=np.int64),
        np.asarray([target], dtype=np.int64),
    )
    return text, count


def solve_many(numbers: Ints, rows: Ints, targets: Ints) -> list[tuple[str | None, int]]:
    """Returns (solution, number of distinct solutions) of each problem, as `solve`.

    Args:
        numbers: int64 [sets, n], each row sorted.
        rows: int64 [problems], ascending: which of the sets a problem has.
        targets: int64 [problems], positive.
    """
    solved: list[tuple[str | None, int]] = []
    for part in _batches(numbers):
        first, last = np.searchsorted(rows, [part.start, part.stop])
        own = rows[first:last] - part.start
        matches = _integer_values(numbers[part])[:, own] == targets[first:last]
        problems, forms = np.nonzero(matches.T)
        bounds = np.searchsorted(problems, np.arange(len(own) + 1)).tolist()
        indices = forms.tolist()
        solved += [
            _summarise(values, indices[bounds[i] : bounds[i + 1]])
            for i, values in enumerate(numbers[part][own].tolist())
        ]
    return solved


def reachable(numbers: Ints, *, low: int, high: int) -> npt.NDArray[np.bool_]:
    """Returns which targets each set of numbers can make: bool [sets, high - low + 1].

    Args:
        numbers: int64 [sets, n], each row sorted.
        low: least target, at least 1.
        high: greatest target.
    """
    table = np.zeros((len(numbers), high - low + 1), dtype=np.bool_)
    for part in _batches(numbers):
        values = _integer_values(numbers[part])
        forms, rows = np.nonzero((values >= low) & (values <= high))
        table[part][rows, values[forms, rows] - low] = True
    return table


def _batches(numbers: Ints) -> list[slice]:
    """Slices of rows whose arrays stay small, so that they fit the processor's cache."""
    step = max(1, _BATCH_VALUES // num_forms(numbers.shape[1]))
    return [slice(start, start + step) for start in range(0, len(numbers), step)]


def _summarise(numbers: list[int], indices: list[int]) -> tuple[str | None, int]:
    if not indices:
        return None, 0
    count = len(indices)
    if len(set(numbers)) < len(numbers):  # equal numbers make some of the forms equal
        count = len({form_at(index, numbers) for index in indices})
    return form_text(form_at(indices[0], numbers)), count


def _integer_values(numbers: Ints) -> Ints:
    """Returns |value| of every form, 0 where it is no positive integer: int64 [forms, rows]."""
    positions = tuple(range(numbers.shape[1]))
    num, den = _Sweep(np.ascontiguousarray(numbers.T)).forms(positions)
    num, den = np.abs(num), np.abs(den)
    quotient: Ints = num // np.maximum(den, 1)
    quotient[(quotient * den != num) | (den == 0)] = 0
    return quotient


class _Sweep:
    """Values of all forms over sets of positions, each computed once."""

    def __init__(self, columns: Ints) -> None:
        self.columns = columns
        """int64 [positions, rows]."""
        self.known: dict[tuple[str, Positions], Fractions] = {}

    def forms(self, positions: Positions) -> Fractions:
        """All forms: terms, then sums, whose first term is taken as positive."""
        return self._once("forms", positions, self._forms)

    def _forms(self, positions: Positions) -> Fractions:
        if len(positions) == 1:
            return self.terms(positions)
        return _concatenate([self.terms(positions), self.factors(positions)])

    def factors(self, positions: Positions) -> Fractions:
        """Numbers and sums; a division by zero inside is 0 / 0, and so is all made of it."""
        return self._once("factors", positions, self._factors)

    def _factors(self, positions: Positions) -> Fractions:
        if len(positions) == 1:
            return self.terms(positions)
        parts: list[Fractions] = []
        for block, rest in splits(positions):
            (left_num, left_den), (right_num, right_den) = self.terms(block), self.forms(rest)
            den = _outer(left_den, right_den)
            left, right = _outer(left_num, right_den), _outer(left_den, right_num)
            parts += [(left + right, den), (left - right, den)]
        num, den = _concatenate(parts)
        return np.where(den == 0, 0, num), den

    def terms(self, positions: Positions) -> Fractions:
        """Numbers and products: chains, then those with a divisor upside down."""
        return self._once("terms", positions, self._terms)

    def _terms(self, positions: Positions) -> Fractions:
        if len(positions) == 1:
            number = self.columns[list(positions)]
            return number, np.ones_like(number)
        num, den = self.chains(positions)
        first, turned = num_factors(len(positions)), has_divisor(len(positions))
        return _concatenate([(num[first:], den[first:]), (den[turned], num[turned])])

    def chains(self, positions: Positions) -> Fractions:
        """Single factors, then products whose first factor stands above the line."""
        return self._once("chains", positions, self._chains)

    def _chains(self, positions: Positions) -> Fractions:
        parts = [self.factors(positions)]
        for block, rest in splits(positions):
            (left_num, left_den), (right_num, right_den) = self.factors(block), self.chains(rest)
            parts.append((_outer(left_num, right_num), _outer(left_den, right_den)))
            parts.append((_outer(left_num, right_den), _outer(left_den, right_num)))
        return _concatenate(parts)

    def _once(
        self, kind: str, positions: Positions, compute: Callable[[Positions], Fractions]
    ) -> Fractions:
        key = (kind, positions)
        if key not in self.known:
            self.known[key] = compute(positions)
        return self.known[key]


def _outer(left: Ints, right: Ints) -> Ints:
    product: Ints = (left[:, None] * right[None]).reshape(-1, left.shape[1])
    return product


def _concatenate(parts: list[Fractions]) -> Fractions:
    return np.concatenate([num for num, _ in parts]), np.concatenate([den for _, den in parts])
