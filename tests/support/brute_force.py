"""Counts a puzzle's solutions from every expression there is: slow, and knows no normal form."""

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from itertools import permutations, product

PRIME = 2**61 - 1
POINTS = (1234567890123456789, 987654321987654321, 314159265358979323, 271828182845904523)

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
