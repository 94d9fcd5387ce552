"""Normal forms of Countdown solutions: how many, the i-th of them, and its text (stage 1).

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
where something stands below the line, a chain upside down. This file fixes the order of that list;
`solver` computes the values in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Positions: TypeAlias = tuple[int, ...]
Form: TypeAlias = tuple[int, Any]
"""(0, number), (1, ((term, sign), ...)) or (2, ((factor, exponent), ...)); members sorted.

Not recursive in the type, since tuples of different kinds only ever compare by their first item.
"""
NUMBER, SUM, PRODUCT = 0, 1, 2


@cache
def splits(positions: Positions) -> tuple[tuple[Positions, Positions], ...]:
    """All (block that holds the first position, rest), neither empty."""
    first, others = positions[0], positions[1:]
    return tuple(
        (
            (first, *(p for i, p in enumerate(others) if mask >> i & 1)),
            tuple(p for i, p in enumerate(others) if not mask >> i & 1),
        )
        for mask in range((1 << len(others)) - 1)
    )


@cache
def num_forms(n: int) -> int:
    """Forms over n different numbers, up to sign: 1, 5, 37, ...; single terms come first."""
    return num_terms(n) + (num_factors(n) if n > 1 else 0)


@cache
def num_factors(n: int) -> int:
    """Forms that may be a factor: a number, or a sum."""
    pairs = splits(tuple(range(n)))
    return 2 * sum(num_terms(len(b)) * num_forms(len(r)) for b, r in pairs) if n > 1 else 1


@cache
def num_terms(n: int) -> int:
    """Forms that may be a term: a number, or a product; products upside down come last."""
    flags = has_divisor(n)[num_factors(n) :]
    return len(flags) + int(flags.sum()) if n > 1 else 1


@cache
def has_divisor(n: int) -> npt.NDArray[np.bool_]:
    """Per chain over n positions, single factors first: whether anything stands below the line."""
    flags = [np.zeros(num_factors(n), dtype=np.bool_)]
    for block, rest in splits(tuple(range(n))):
        times = np.tile(has_divisor(len(rest)), num_factors(len(block)))
        flags += [times, np.ones_like(times)]
    return np.concatenate(flags)


def equality_patterns(numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Returns which neighbours are equal, bit i for places i and i + 1: int64 [sets].

    Args:
        numbers: int64 [sets, n], each row sorted.
    """
    equal = (numbers[:, 1:] == numbers[:, :-1]).astype(np.int64)
    patterns: npt.NDArray[np.int64] = equal @ (1 << np.arange(equal.shape[1]))
    return patterns


def form_at(index: int, numbers: Sequence[int]) -> Form:
    """Returns the normal form number `index` of `num_forms(len(numbers))`, filled with `numbers`.

    With equal numbers several indices give the same form.
    """
    form, _ = _form_at(index, tuple(range(len(numbers))), numbers)
    return form


def form_text(form: Form) -> str:
    """Returns an expression with the form's absolute value, such as `(7 - 3) * 5 / 2`.

    No minus sign stands in front: of a negative sum or product the opposite is written.
    """
    return _text_and_value(form)[0]


def _form_at(index: int, positions: Positions, numbers: Sequence[int]) -> tuple[Form, int]:
    """Returns a form without its sign, and the sign, which equal numbers may have turned."""
    if index < num_terms(len(positions)):
        return _term_at(index, positions, numbers)
    return _factor_at(index - num_terms(len(positions)), positions, numbers)


def _factor_at(index: int, positions: Positions, numbers: Sequence[int]) -> tuple[Form, int]:
    if len(positions) == 1:
        return _term_at(index, positions, numbers)
    for block, rest in splits(positions):
        width = num_forms(len(rest))
        for sign in (1, -1):
            if index < num_terms(len(block)) * width:
                first = _term_at(index // width, block, numbers)
                right, right_sign = _form_at(index % width, rest, numbers)
                inner = right[1] if right[0] == SUM else ((right, 1),)
                return _sum_form([first, *((f, s * sign * right_sign) for f, s in inner)])
            index -= num_terms(len(block)) * width
    raise IndexError(index)


def _term_at(index: int, positions: Positions, numbers: Sequence[int]) -> tuple[Form, int]:
    size = len(positions)
    if size == 1:
        return (NUMBER, numbers[positions[0]]), 1
    turned = index - (len(has_divisor(size)) - num_factors(size))
    if turned < 0:
        return _product_form(_chain_at(index + num_factors(size), positions, numbers), 1)
    chain = int(np.flatnonzero(has_divisor(size))[turned])
    return _product_form(_chain_at(chain, positions, numbers), -1)


def _chain_at(
    index: int, positions: Positions, numbers: Sequence[int]
) -> list[tuple[Form, int, int]]:
    """Returns the chain's (factor, sign, exponent)s."""
    if index < num_factors(len(positions)):
        return [(*_factor_at(index, positions, numbers), 1)]
    index -= num_factors(len(positions))
    for block, rest in splits(positions):
        width = len(has_divisor(len(rest)))
        for exponent in (1, -1):
            if index < num_factors(len(block)) * width:
                left = _factor_at(index // width, block, numbers)
                right = _chain_at(index % width, rest, numbers)
                return [(*left, 1), *((f, s, e * exponent) for f, s, e in right)]
            index -= num_factors(len(block)) * width
    raise IndexError(index)


def _sum_form(terms: list[tuple[Form, int]]) -> tuple[Form, int]:
    """Returns the sum with its sign moved out: of the two mirror images, the greater."""
    straight = tuple(sorted((f, 1 if _is_null(f) else s) for f, s in terms))
    mirrored = tuple(sorted((f, 1 if _is_null(f) else -s) for f, s in terms))
    return (SUM, max(straight, mirrored)), 1 if straight >= mirrored else -1


def _product_form(factors: list[tuple[Form, int, int]], exponent: int) -> tuple[Form, int]:
    members = tuple(sorted((f, e * exponent) for f, _, e in factors))
    return (PRODUCT, members), prod(s for _, s, _ in factors)


def _is_null(form: Form) -> bool:
    """Whether a form is its own opposite, like a - a: its sign then means nothing."""
    kind, members = form
    if kind == PRODUCT:
        return any(_is_null(factor) for factor, _ in members)
    if kind == NUMBER:
        return False
    mirrored = sorted((f, 1 if _is_null(f) else -s) for f, s in members)
    return bool(tuple(mirrored) == members)


def _text_and_value(form: Form) -> tuple[str, int, int]:
    """Returns the text of the absolute value, and the value as numerator and positive denominator.

    Not reduced: only the sign is wanted, and Fraction would take most of the generation's time.
    """
    kind, members = form
    if kind == NUMBER:
        return str(members), members, 1
    return _sum_text(members) if kind == SUM else _product_text(members)


def _sum_text(members: Sequence[tuple[Form, int]]) -> tuple[str, int, int]:
    total, common = 0, 1
    signed: list[tuple[str, int]] = []
    for term, sign in members:
        text, num, den = _text_and_value(term)
        total, common = total * den + sign * num * common, common * den
        signed.append((text, sign * num))
    direction = -1 if total < 0 else 1
    plus = [text for text, num in signed if num * direction >= 0]
    minus = [text for text, num in signed if num * direction < 0]
    return " - ".join([" + ".join(plus), *minus]), total, common


def _product_text(members: Sequence[tuple[Form, int]]) -> tuple[str, int, int]:
    over, under = 1, 1
    above: list[str] = []
    below: list[str] = []
    for factor, exponent in members:
        text, num, den = _text_and_value(factor)
        (above if exponent > 0 else below).append(f"({text})" if factor[0] == SUM else text)
        over, under = (over * num, under * den) if exponent > 0 else (over * den, under * num)
    text = " / ".join([" * ".join(above), *below])
    return (text, over, under) if under > 0 else (text, -over, -under)
