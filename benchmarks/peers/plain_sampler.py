"""A plain Python generator for data.py: draw, try every expression, keep what can be solved.

python benchmarks/peers/plain_sampler.py PUZZLES
"""

from __future__ import annotations

import operator
import random
import sys
import time
from collections.abc import Iterator
from fractions import Fraction
from itertools import permutations, product

from usage import print_report

OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def expressions(numbers: tuple[int, ...]) -> Iterator[tuple[Fraction, str]]:
    """Yields every value, and its text, of numbers in this order, in every way."""
    if len(numbers) == 1:
        yield Fraction(numbers[0]), str(numbers[0])
        return
    for cut in range(1, len(numbers)):
        for (left, left_text), (right, right_text) in product(
            expressions(numbers[:cut]), list(expressions(numbers[cut:]))
        ):
            for sign, apply in OPERATORS.items():
                if sign != "/" or right:
                    yield apply(left, right), f"({left_text} {sign} {right_text})"


def solve(numbers: tuple[int, ...], target: int) -> str | None:
    """Returns the first solution found."""
    for order in permutations(numbers):
        for value, text in expressions(order):
            if value == target:
                return text
    return None


def main() -> None:
    """Prints a report: CPU seconds and peak megabytes of so many puzzles."""
    wanted, rng = int(sys.argv[1]), random.Random(0)
    found: dict[tuple[tuple[int, ...], int], str] = {}
    start = time.process_time()
    while len(found) < wanted:
        size = 3 + len(found) % 2
        numbers, target = tuple(rng.randint(1, 99) for _ in range(size)), rng.randint(10, 99)
        solution = solve(numbers, target)
        if solution is not None:
            found.setdefault((tuple(sorted(numbers)), target), solution)
    print_report(time.process_time() - start)


if __name__ == "__main__":
    main()
