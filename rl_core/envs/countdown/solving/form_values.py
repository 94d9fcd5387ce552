"""Values of all normal forms over columns of numbers, in the order of `forms` (stage 1).

Not the search for a target (`solver`): only the arithmetic, on whole arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rl_core.envs.countdown.solving.forms import (
    Positions,
    has_divisor,
    num_factors,
    num_terms,
    splits,
)

Ints: TypeAlias = npt.NDArray[np.int64]
Exact: TypeAlias = npt.NDArray[Any]
"""Integers: int64, or float64 where all are small enough, which processors multiply faster."""
Fractions: TypeAlias = tuple[Exact, Exact]
"""num and den [forms, rows], not reduced; a den of 0 means a division by zero.

int64 cannot overflow: each number occurs at most once in every monomial, and only the plain product
of up to 6 numbers below 1,000 (hence below 1e18) has all of them; others have 9 monomials at most.
"""


class FormValues:
    """Values of all forms over sets of positions, each computed once."""

    def __init__(self, columns: Exact) -> None:
        self.columns = columns
        """[positions, rows]."""
        self.known: dict[tuple[str, Positions], Fractions] = {}

    def forms(self, positions: Positions) -> Fractions:
        """All forms: terms, then sums, whose first term is taken as positive."""
        return self._once("forms", positions, self._forms)

    def pieces(self) -> Iterator[tuple[Ints, Exact, Exact]]:
        """Yields all forms over all positions in no order, piece by piece, to stay in the cache.

        Yields:
            int64 [k], which forms; their num and den [k, rows], valid until the next piece.
        """
        positions = tuple(range(len(self.columns)))
        size = len(positions)
        if size == 1:
            yield np.zeros(1, dtype=np.int64), *self.terms(positions)
            return
        first, turned = num_factors(size), has_divisor(size)
        start = num_terms(size)
        for num, den in self._sums(positions):
            yield np.arange(start, start + len(num)), num, den
            start += len(num)
        start, upside_down = first, len(turned) - first + np.cumsum(turned) - 1
        for num, den in self._products(positions):
            end = start + len(num)
            yield np.arange(start - first, end - first), num, den
            if turned[start:end].all():
                yield upside_down[start:end], den, num
            elif turned[start:end].any():
                below = np.flatnonzero(turned[start:end])
                yield upside_down[start:end][below], den[below], num[below]
            start = end

    def factors(self, positions: Positions) -> Fractions:
        """Numbers and sums; a division by zero inside is 0 / 0, and so is all made of it."""
        return self._once("factors", positions, self._factors)

    def terms(self, positions: Positions) -> Fractions:
        """Numbers and products: chains, then those with a divisor upside down."""
        return self._once("terms", positions, self._terms)

    def chains(self, positions: Positions) -> Fractions:
        """Single factors, then products whose first factor stands above the line."""
        return self._once("chains", positions, self._chains)

    def _forms(self, positions: Positions) -> Fractions:
        if len(positions) == 1:
            return self.terms(positions)
        return _concatenate([self.terms(positions), self.factors(positions)])

    def _factors(self, positions: Positions) -> Fractions:
        if len(positions) == 1:
            return self.terms(positions)
        return _concatenate(list(self._sums(positions)))

    def _terms(self, positions: Positions) -> Fractions:
        if len(positions) == 1:
            number = self.columns[list(positions)]
            return number, np.ones_like(number)
        num, den = self.chains(positions)
        first, turned = num_factors(len(positions)), has_divisor(len(positions))
        return _concatenate([(num[first:], den[first:]), (den[turned], num[turned])])

    def _chains(self, positions: Positions) -> Fractions:
        return _concatenate([self.factors(positions), *self._products(positions)])

    def _sums(self, positions: Positions) -> Iterator[Fractions]:
        for block, rest in splits(positions):
            (left_num, left_den), (right_num, right_den) = self.terms(block), self.forms(rest)
            den = _outer(left_den, right_den)
            left, right = _outer(left_num, right_den), _outer(left_den, right_num)
            null = den == 0
            for num in (left + right, np.subtract(left, right, out=left)):
                num[null] = 0
                yield num, den

    def _products(self, positions: Positions) -> Iterator[Fractions]:
        for block, rest in splits(positions):
            (left_num, left_den), (right_num, right_den) = self.factors(block), self.chains(rest)
            yield _outer(left_num, right_num), _outer(left_den, right_den)
            yield _outer(left_num, right_den), _outer(left_den, right_num)

    def _once(
        self, kind: str, positions: Positions, compute: Callable[[Positions], Fractions]
    ) -> Fractions:
        key = (kind, positions)
        if key not in self.known:
            self.known[key] = compute(positions)
        return self.known[key]


def _outer(left: Exact, right: Exact) -> Exact:
    product: Exact = (left[:, None] * right[None]).reshape(-1, left.shape[1])
    return product


def _concatenate(parts: list[Fractions]) -> Fractions:
    return np.concatenate([num for num, _ in parts]), np.concatenate([den for _, den in parts])
