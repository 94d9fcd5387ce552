"""Normal forms of Countdown solutions: all of them, in one order, and their values (stage 1).

Normal form. Two expressions are the same solution when both read the same after

- nested sums and differences are flattened to one multiset of signed terms:
  a - (b - c) = a + c - b;
- nested products and quotients are flattened to one multiset of factors above and below the line:
  a / (b / c) = (c * a) / b;
- signs are moved out of factors: (a - b) * c and -(b - a) * c are the same, so a minus sign in
  front of a parenthesis adds no solutions;
- equal numbers are interchangeable.

Nothing else is simplified: 6 * 1 and 6 / 1 are two solutions.

Over n different numbers each form up to sign is listed once. A sum over a set of positions is the
term that holds its first position, plus or minus the sum over the rest; a chain is the factor that
holds the first position, times or divided by the chain over the rest; a product is a chain or,
where something stands below the line, a chain upside down.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Positions: TypeAlias = tuple[int, ...]
Tree: TypeAlias = int | tuple[Any, ...]
"""A position; (`+`, `-`, `*` or `/`, first, rest); or (`1/`, chain), a chain upside down."""
Exact: TypeAlias = npt.NDArray[Any]
"""Integers: int64, or float64 if all are small enough."""
Fractions: TypeAlias = tuple[Exact, Exact]
"""num and den [forms, rows], not reduced; a den of 0 means a division by zero.

int64 cannot overflow: each number occurs at most once in every monomial, and only the plain product
of up to 6 numbers below 1,000 (hence below 1e18) has all of them; others have 9 monomials at most.
"""
_Kind: TypeAlias = Literal["forms", "terms", "factors", "chains", "products"]


class _Trees:
    """Lists of all forms over sets of positions, as expressions."""

    def __init__(self) -> None:
        self._known: dict[tuple[_Kind, Positions], Any] = {}

    def all(self, kind: _Kind, positions: Positions) -> Any:
        """Returns the list of one kind: `forms` are terms and sums, `factors` numbers and sums."""
        key = (kind, positions)
        if key not in self._known:
            parts = list(self.parts(kind, positions))
            self._known[key] = parts[0] if len(parts) == 1 else self._together(parts)
        return self._known[key]

    def parts(self, kind: _Kind, positions: Positions) -> Iterator[Any]:
        if len(positions) == 1:
            yield self._number(positions[0])
        elif kind == "forms":
            yield self.all("terms", positions)
            yield self.all("factors", positions)
        elif kind == "chains":
            yield self.all("factors", positions)
            yield self.all("products", positions)
        elif kind == "terms":
            yield self.all("products", positions)
            yield self._upside_down(self.all("products", positions), len(positions))
        for block, rest in _splits(positions):
            if kind == "factors":  # a sum's first term is taken as positive
                yield from self._pairs("+-", self.all("terms", block), self.all("forms", rest))
            elif kind == "products":
                yield from self._pairs("*/", self.all("factors", block), self.all("chains", rest))

    def _number(self, position: int) -> Any:
        return [position]

    def _pairs(self, signs: str, first: Any, rest: Any) -> Iterator[Any]:
        """Yields all pairs with the one sign, then with the other; `rest` changes fastest."""
        for sign in signs:
            yield [(sign, left, right) for left in first for right in rest]

    def _upside_down(self, products: Any, size: int) -> Any:
        """Returns those with something below the line, upside down."""
        return [("1/", product) for product in products if _is_divided(product)]

    def _together(self, parts: list[Any]) -> Any:
        return [tree for part in parts for tree in part]


class _Values(_Trees):
    """The same lists as `Fractions`, over columns of numbers [positions, rows]."""

    def __init__(self, columns: Exact) -> None:
        super().__init__()
        self._columns = columns

    def _number(self, position: int) -> Fractions:
        number = self._columns[[position]]
        return number, np.ones_like(number)

    def _pairs(self, signs: str, first: Fractions, rest: Fractions) -> Iterator[Fractions]:
        if signs == "*/":
            yield _outer(first[0], rest[0]), _outer(first[1], rest[1])
            yield _outer(first[0], rest[1]), _outer(first[1], rest[0])
            return
        den = _outer(first[1], rest[1])
        left = _outer(first[0], rest[1])
        right = _outer(first[1], rest[0])
        null = den == 0  # a division by zero inside is 0 / 0, and so is all made of it
        for num in (left + right, np.subtract(left, right, out=left)):
            num[null] = 0
            yield num, den

    def _upside_down(self, products: Fractions, size: int) -> Fractions:
        divided = _are_divided(size)
        return products[1][divided], products[0][divided]

    def _together(self, parts: list[Fractions]) -> Fractions:
        return np.concatenate([num for num, _ in parts]), np.concatenate([den for _, den in parts])


@cache
def form_trees(n: int) -> list[Tree]:
    """Returns all forms over n different numbers, up to sign: 1, 5, 37, ... of them."""
    return list(_Trees().all("forms", tuple(range(n))))


def num_forms(n: int) -> int:
    """Returns how many forms there are over n different numbers."""
    return len(form_trees(n))


def form_values(columns: Exact) -> Iterator[Fractions]:
    """Yields the values of all forms over columns [n, rows], in the order of `form_trees`.

    Part by part, so that they stay in the processor's cache.
    """
    values = _Values(columns)
    everything = tuple(range(len(columns)))
    yield from values.parts("terms", everything)
    if len(everything) > 1:
        yield from values.parts("factors", everything)


def equality_patterns(numbers: Ints) -> Ints:
    """Returns which neighbours in sorted rows are equal, bit i for places i and i + 1."""
    equal = (numbers[:, 1:] == numbers[:, :-1]).astype(np.int64)
    return np.asarray(equal @ (1 << np.arange(equal.shape[1])))


@cache
def _splits(positions: Positions) -> tuple[tuple[Positions, Positions], ...]:
    first = positions[0]
    others = positions[1:]
    return tuple(
        (
            (first, *(p for i, p in enumerate(others) if mask >> i & 1)),
            tuple(p for i, p in enumerate(others) if not mask >> i & 1),
        )
        for mask in range((1 << len(others)) - 1)
    )


@cache
def _are_divided(size: int) -> npt.NDArray[np.bool_]:
    """Returns which products over so many positions have something below the line."""
    return np.array([_is_divided(tree) for tree in _Trees().all("products", tuple(range(size)))])


def _is_divided(chain: Tree) -> bool:
    while not isinstance(chain, int) and chain[0] in ("*", "/"):
        if chain[0] == "/":
            return True
        chain = chain[2]
    return False


def _outer(left: Exact, right: Exact) -> Exact:
    return np.asarray(left[:, None] * right[None]).reshape(-1, left.shape[1])
