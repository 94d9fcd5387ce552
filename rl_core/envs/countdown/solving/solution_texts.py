"""Texts of solutions, many at once (data path stage 1).

Solutions of one form differ in their numbers, and in which of its sums are negative: no minus sign
stands in front of a text or a parenthesis, of a negative sum the opposite is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from rl_core.envs.countdown.solving.forms import Ints, Tree, equality_patterns, form_trees

Texts: TypeAlias = npt.NDArray[np.object_]
_Form: TypeAlias = tuple[int, Any]
"""(0, place), (1, ((term, sign), ...)) or (2, ((factor, exponent), ...)); members sorted.

Not recursive in the type, since tuples of different kinds only ever compare by their first item.
"""
_Written: TypeAlias = tuple[Texts, Ints, Ints]
"""Texts of absolute values; the values, as num and positive den, not reduced."""
_NUMBER, _SUM, _PRODUCT = 0, 1, 2
_NUMERALS = np.array([str(number) for number in range(1_000)], dtype=object)


def solution_texts(numbers: Ints, forms: Ints) -> Texts:
    """Returns the text of form `forms[i]` over `numbers[i]`, such as `(7 - 3) * 5 / 2`.

    Args:
        numbers: int64 [solutions, n], each row sorted and in 1..999.
        forms: int64 [solutions], places in `form_trees(n)`; none divides by zero.

    Returns:
        str [solutions].
    """
    texts = np.full(len(forms), "", dtype=object)
    trees = form_trees(numbers.shape[1])
    keys = equality_patterns(numbers) * len(trees) + forms
    order = np.argsort(keys, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(keys[order])) + 1):
        if len(rows):
            own = numbers[rows]
            # Numbers enter a form by their order alone: a place that stands for its number will do.
            places = np.searchsorted(own[0], own[0]).tolist()
            texts[rows] = _write(_normal_form(trees[forms[rows[0]]], places), own.T)[0]
    return texts


def _normal_form(tree: Tree, places: Sequence[int]) -> _Form:
    kind = _kind(tree)
    if isinstance(tree, int):
        return kind, places[tree]
    return kind, tuple(sorted(_members(tree, kind, 1, places)))


def _members(
    tree: Tree, kind: int, power: int, places: Sequence[int]
) -> Iterator[tuple[_Form, int]]:
    """Yields a sum's terms with their signs, or a product's factors with their exponents."""
    if isinstance(tree, int) or _kind(tree) != kind:
        yield _normal_form(tree, places), power
    elif tree[0] == "1/":
        yield from _members(tree[1], kind, -power, places)
    else:
        operation, first, rest = tree
        yield _normal_form(first, places), power
        yield from _members(rest, kind, power if operation in "+*" else -power, places)


def _kind(tree: Tree) -> int:
    if isinstance(tree, int):
        return _NUMBER
    return _SUM if tree[0] in ("+", "-") else _PRODUCT


def _write(form: _Form, columns: Ints) -> _Written:
    kind, members = form
    if kind == _NUMBER:
        return _NUMERALS[columns[members]], columns[members], np.ones_like(columns[members])
    texts, nums, dens = zip(*(_write(member, columns) for member, _ in members), strict=True)
    powers = [power for _, power in members]
    if kind == _SUM:
        return _write_sum(texts, nums, dens, signs=powers)
    bracketed = [
        "(" + text + ")" if member[0] == _SUM else text
        for (member, _), text in zip(members, texts, strict=True)
    ]
    return _write_product(bracketed, nums, dens, exponents=powers)


def _write_sum(
    texts: Sequence[Texts], nums: Sequence[Ints], dens: Sequence[Ints], *, signs: Sequence[int]
) -> _Written:
    common: Ints = np.prod(dens, axis=0)
    values = [sign * num * common // den for num, den, sign in zip(nums, dens, signs, strict=True)]
    total: Ints = np.sum(values, axis=0)
    direction = np.where(total == 0, signs[0], np.sign(total))
    plus = minus = np.full(len(total), "", dtype=object)
    for text, value in zip(texts, values, strict=True):
        is_plus = value * direction >= 0
        plus = plus + np.where(is_plus, " + " + text, "")
        minus = minus + np.where(is_plus, "", " - " + text)
    written = [text[len(" + ") :] for text in plus + minus]
    return np.array(written, dtype=object), total, common


def _write_product(
    texts: Sequence[Texts], nums: Sequence[Ints], dens: Sequence[Ints], *, exponents: Sequence[int]
) -> _Written:
    above = [text for text, exponent in zip(texts, exponents, strict=True) if exponent > 0]
    below = [text for text, exponent in zip(texts, exponents, strict=True) if exponent < 0]
    written = above[0]
    for text in above[1:]:
        written = written + " * " + text
    for text in below:
        written = written + " / " + text
    fractions = zip(nums, dens, exponents, strict=True)
    upright = [(num, den) if exponent > 0 else (den, num) for num, den, exponent in fractions]
    over, under = np.prod(upright, axis=0)
    return written, over * np.sign(under), np.abs(under)
