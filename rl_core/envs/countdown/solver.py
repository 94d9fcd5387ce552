"""Proves that Countdown problems are solvable, and counts and writes their solutions (stage 1).

Many at a time: solutions are counted in the normal form of `forms`. The values of all forms are
arrays over forms and rows, so one sweep of numpy solves a whole batch of sets of numbers.

No text or parenthesis begins with a minus sign: for a negative sum the opposite is written.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from rl_core.envs.countdown.forms import (
    Ints,
    Tree,
    equality_patterns,
    form_trees,
    form_values,
    num_forms,
)

Texts: TypeAlias = npt.NDArray[np.object_]
_Members: TypeAlias = tuple[tuple[tuple[int, Any], int], ...]
_Form: TypeAlias = tuple[int, Any]
"""(0, place), (1, ((term, sign), ...)) or (2, ((factor, exponent), ...)); members sorted.

Not recursive in the type, since tuples of different kinds only ever compare by their first item.
"""
_NUMBER = 0
_SUM = 1
_PRODUCT = 2
_BATCH_VALUES = 1 << 19
_BATCH_ROWS = 8
_EXACT_FLOAT = 1 << 53
"""Below it float64 holds every integer, and processors multiply and divide it faster."""


class Solved(NamedTuple):
    """All solvable problems over some sets of numbers, ascending by set, then target."""

    rows: Ints
    """int64 [problems]: which set."""
    targets: Ints
    counts: Ints
    """Of distinct solutions, at least 1."""
    first_forms: Ints
    """The solution that `forms` lists first."""


def solve_many(
    numbers: Sequence[Sequence[int]], targets: Sequence[int]
) -> list[tuple[str | None, int]]:
    """Returns for each problem one solution as text, or None, and the number of solutions.

    A problem has 1 to 6 numbers in 1..999 and a positive target.
    """
    solved: list[tuple[str | None, int]] = [(None, 0)] * len(targets)
    sizes = np.array(list(map(len, numbers)))
    for size in np.unique(sizes):
        places = np.flatnonzero(sizes == size)
        sets = np.sort(np.array([numbers[i] for i in places], dtype=np.int64), axis=1)
        aims = np.array([targets[i] for i in places], dtype=np.int64)
        hits = [quotients == aims[rows] for rows, quotients in _sweep(sets)]
        counts = np.concatenate([hit.sum(axis=0) for hit in hits])
        firsts = np.concatenate([hit.argmax(axis=0) for hit in hits])
        there = counts > 0
        texts = solution_texts(sets[there], firsts[there])
        for place, text, count in zip(places[there], texts, counts[there].tolist(), strict=True):
            solved[place] = text, count
    return solved


def solve_range(numbers: Ints, *, low: int, high: int) -> Solved:
    """Returns every target in low..high (low >= 1) that each set of numbers can make.

    `numbers` is int64 [sets, n], n from 1 to 6, each row sorted and in 1..999.
    """
    span = high - low + 1
    parts = []
    for batch, quotients in _sweep(numbers):
        places = np.flatnonzero((quotients >= low) & (quotients <= high))
        forms, rows = np.divmod(places, quotients.shape[1])
        problems = (rows + batch.start) * span + quotients.ravel()[places] - low
        keys, firsts, counts = np.unique(problems, return_index=True, return_counts=True)
        parts.append((keys // span, keys % span + low, counts, forms[firsts]))
    return Solved(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def solution_texts(numbers: Ints, forms: Ints) -> Texts:
    """Returns the text of form `forms[i]` over the sorted `numbers[i]`: `(7 - 3) * 5 / 2`.

    Forms are places in `form_trees(n)`; none divides by zero.
    """
    texts = np.empty(len(forms), dtype=object)
    trees = form_trees(numbers.shape[1])
    known: dict[tuple[int, int], _Form] = {}
    rows = (column.tolist() for column in (numbers, forms, equality_patterns(numbers)))
    for i, (row, form, pattern) in enumerate(zip(*rows, strict=True)):
        if (form, pattern) not in known:
            # A form depends only on the order of its numbers, so places stand for them here.
            known[form, pattern] = _normal_form(trees[form], [row.index(number) for number in row])
        texts[i] = _write(known[form, pattern], row)[0]
    return texts


def _sweep(numbers: Ints) -> Iterator[tuple[slice, Ints]]:
    """Yields batches of rows with the values of their forms: int64 [forms, rows].

    Values are absolute; 0 if not an integer, or if the form equals one that is listed before it.
    The array is valid until the next batch.
    """
    size = numbers.shape[1]
    step = max(_BATCH_ROWS, _BATCH_VALUES // num_forms(size))
    memory = np.empty((num_forms(size), min(step, len(numbers))), dtype=np.int64)
    small = 9 * int(numbers.max()) ** size < _EXACT_FLOAT
    kind = np.float64 if small else np.int64
    for start in range(0, len(numbers), step):
        batch = slice(start, start + step)
        rows = numbers[batch]
        quotients = memory[:, : len(rows)]
        begin = 0
        for num, den in form_values(np.ascontiguousarray(rows.T, dtype=kind)):
            over = np.abs(num)
            under = np.abs(den)
            divisor = np.maximum(under, 1)
            whole = np.rint(over / divisor) if small else over // divisor
            whole *= whole * under == over
            quotients[begin : begin + len(num)] = whole
            begin += len(num)
        patterns = equality_patterns(rows)
        for pattern in np.unique(patterns[patterns > 0]).tolist():
            quotients[np.ix_(_repeats(size, pattern), patterns == pattern)] = 0
        yield batch, quotients


@cache
def _repeats(n: int, pattern: int) -> npt.NDArray[np.bool_]:
    """Returns which forms equal one before them when neighbours are equal as in a pattern.

    They do if an exchange of equal numbers turns one into the other. Sorted numbers are exchanged
    one place at a time.
    """
    images = _exchanges(n)[[i for i in range(n - 1) if pattern >> i & 1]]
    first = np.arange(num_forms(n))
    for image in [*images] * len(images):  # as many rounds as sorting by such exchanges can take
        first = np.minimum(first, first[image])
    return np.asarray(first < np.arange(num_forms(n)))


@cache
def _exchanges(n: int) -> Ints:
    """Returns which form each becomes when places i and i + 1 are exchanged: int64 [n - 1, forms].

    Forms are told apart by their values, up to sign and modulo 2**64, at a point where no two
    agree.
    """
    point = np.random.default_rng(0).integers(1 << 62, size=n) | 1
    exchanged = np.tile(point, (n, 1))
    for i in range(n - 1):
        exchanged[i + 1, [i, i + 1]] = point[[i + 1, i]]
    values = zip(*form_values(np.ascontiguousarray(exchanged.T)), strict=True)
    num, den = (np.concatenate(parts) for parts in values)
    prints = np.abs(num) * 0x1E3779B97F4A7C15 + np.abs(den)  # [forms, exchanges]
    order = np.argsort(prints[:, 0])
    ranked = prints[order, 0]
    assert (ranked[1:] != ranked[:-1]).all(), "two forms agree at the point"
    images: Ints = order[np.searchsorted(ranked, prints[:, 1:])].T
    assert (prints[images.T, 0] == prints[:, 1:]).all(), "an exchange gave a form not in the list"
    return images


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


def _write(form: _Form, numbers: Sequence[int]) -> tuple[str, int, int]:
    """Returns the text of an absolute value, and the value as num and positive den, not reduced."""
    kind, members = form
    if kind == _NUMBER:
        return str(numbers[members]), numbers[members], 1
    return (_write_sum if kind == _SUM else _write_product)(members, numbers)


def _write_sum(members: _Members, numbers: Sequence[int]) -> tuple[str, int, int]:
    total = 0
    common = 1
    terms = []
    for member, sign in members:
        text, num, den = _write(member, numbers)
        total = total * den + sign * num * common
        common *= den
        terms.append((text, sign * num))
    direction = total or members[0][1]
    plus = [text for text, num in terms if num * direction >= 0]
    minus = [text for text, num in terms if num * direction < 0]
    return " - ".join([" + ".join(plus), *minus]), total, common


def _write_product(members: _Members, numbers: Sequence[int]) -> tuple[str, int, int]:
    above = list[str]()
    below = list[str]()
    over = under = 1
    for member, exponent in members:
        text, num, den = _write(member, numbers)
        (above if exponent > 0 else below).append(f"({text})" if member[0] == _SUM else text)
        num, den = (num, den) if exponent > 0 else (den, num)
        over *= num
        under *= den
    sign = 1 if under > 0 else -1
    return " / ".join([" * ".join(above), *below]), sign * over, sign * under
