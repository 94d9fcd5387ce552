"""Proves that Countdown problems are solvable and counts their solutions, many at a time (stage 1).

Solutions are counted in the normal form that `forms` states. Values of all forms are computed as
arrays over forms and rows, in the order of `forms`, so one sweep of numpy solves every target of a
whole batch of sets of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from rl_core.envs.countdown.solving.form_values import Exact, FormValues, Ints
from rl_core.envs.countdown.solving.forms import equality_patterns, num_forms
from rl_core.envs.countdown.solving.solution_texts import solution_texts

_BATCH_VALUES, _BATCH_ROWS = 1 << 20, 8
_EXACT_FLOAT = 1 << 53
"""Below it float64 holds every integer, and rounds no quotient of two to an integer that it is not:
such a quotient is at least 1 / den away, and rounding moves it by less than num / den / 2**53."""

_POINTS = ((211, 389, 571, 683, 839, 977), (163, 307, 457, 619, 761, 997))
_HASH = np.asarray(
    [
        [0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F],
        [0xD6E8FEB86659FD93, 0xA0761D6478BD642F],
    ],
    dtype=np.uint64,
)


@dataclass(frozen=True)
class Solved:
    """All solvable problems over some sets of numbers, ascending by set, then target."""

    rows: Ints
    """int64 [problems]: which set."""
    targets: Ints
    """int64 [problems]."""
    counts: Ints
    """int64 [problems]: distinct solutions, at least 1."""
    first_forms: Ints
    """int64 [problems]: the solution that `forms` lists first."""


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
        rows: int64 [problems]: which of the sets a problem has.
        targets: int64 [problems], positive.
    """
    if len(targets) == 0:
        return []
    low, high = int(targets.min()), int(targets.max())
    solved = solve_range(numbers, low=low, high=high)
    keys = solved.rows * (high - low + 1) + solved.targets - low
    wanted = rows * (high - low + 1) + targets - low
    places = np.searchsorted(keys, wanted)
    there = np.append(keys, -1)[places] == wanted
    places = places[there]
    texts = iter(solution_texts(numbers[solved.rows[places]], solved.first_forms[places]))
    counts = iter(solved.counts[places].tolist())
    return [(next(texts), next(counts)) if found else (None, 0) for found in there.tolist()]


def solve_range(numbers: Ints, *, low: int, high: int) -> Solved:
    """Returns every target in a range that each set of numbers can make, with its solutions.

    Args:
        numbers: int64 [sets, n], n from 1 to 6, each row sorted and in 1..999.
        low: least target, at least 1.
        high: greatest target.
    """
    step = max(_BATCH_ROWS, _BATCH_VALUES // num_forms(numbers.shape[1]))
    parts = [
        _solve_batch(numbers[start : start + step], start, low, high)
        for start in range(0, len(numbers), step)
    ]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Solved(*columns) if columns else Solved(*(np.zeros((4, 0), dtype=np.int64)))


def _solve_batch(numbers: Ints, start: int, low: int, high: int) -> tuple[Ints, Ints, Ints, Ints]:
    width, span = num_forms(numbers.shape[1]), high - low + 1
    forms, rows, targets = _solutions(numbers, low, high)
    patterns = equality_patterns(numbers)[rows]
    if patterns.any():  # equal numbers make some of the forms equal
        kept = _is_first_of_equals(numbers.shape[1])[patterns, forms]
        forms, rows, targets = forms[kept], rows[kept], targets[kept]
    keys = np.sort((rows * span + (targets - low)) * width + forms)
    problems = keys // width
    firsts = np.flatnonzero(np.diff(problems, prepend=-1))
    counts = np.diff(firsts, append=len(keys))
    found, offsets = np.divmod(problems[firsts], span)
    return found + start, offsets + low, counts, keys[firsts] - problems[firsts] * width


def _solutions(numbers: Ints, low: int, high: int) -> tuple[Ints, Ints, Ints]:
    """Returns form, row and absolute value of each form that is an integer in the range."""
    size, num_rows = numbers.shape[1], len(numbers)
    small = 9 * int(numbers.max()) ** size < _EXACT_FLOAT
    columns = np.ascontiguousarray(numbers.T, dtype=np.float64 if small else np.int64)
    found: list[Ints] = []
    values: list[Ints] = []
    for indices, num, den in FormValues(columns).pieces():
        quotients = _quotients(num, den)
        inside = (quotients >= low) & (quotients <= high) & (quotients == np.rint(quotients))
        places = np.flatnonzero(inside)
        found.append(indices[places // num_rows] * num_rows + places % num_rows)
        values.append(quotients.ravel()[places].astype(np.int64))
    forms, rows = np.divmod(np.concatenate(found), num_rows)
    return forms, rows, np.concatenate(values)


def _quotients(num: Exact, den: Exact) -> Exact:
    """Returns |num / den|: as floats (not finite for a den of 0), or 0 where it is no integer."""
    if num.dtype == np.float64:
        with np.errstate(divide="ignore", invalid="ignore"):
            absolute: Exact = np.abs(num / den)
            return absolute
    num, den = np.abs(num), np.abs(den)
    quotients: Exact = num // np.maximum(den, 1)
    quotients[(quotients * den != num) | (den == 0)] = 0
    return quotients


@cache
def _is_first_of_equals(n: int) -> npt.NDArray[np.bool_]:
    """Returns which forms stay when numbers are equal: bool [patterns, forms].

    Forms are the same if an exchange of equal numbers turns one into the other; of those the first
    in the list stays. Sorted numbers are exchanged one place at a time.
    """
    exchanged = _exchanges(n)
    kept = np.ones((1 << (n - 1), num_forms(n)), dtype=np.bool_)
    for pattern in range(1, len(kept)):
        equal = [exchanged[i] for i in range(n - 1) if pattern >> i & 1]
        first = np.arange(num_forms(n))
        for image in equal * len(equal):  # as many rounds as sorting by such exchanges can take
            first = np.minimum(first, first[image])
        kept[pattern] = first == np.arange(num_forms(n))
    return kept


def _exchanges(n: int) -> list[Ints]:
    """Returns which form each becomes when places i and i + 1 are exchanged: n - 1 permutations.

    Forms are told apart by their values, up to sign, at two points where no two agree.
    """
    straight = np.stack([np.asarray(point[:n], dtype=np.int64) for point in _POINTS], axis=1)
    orders = [np.arange(n)] * n
    for i in range(n - 1):
        orders[i + 1] = orders[0].copy()
        orders[i + 1][[i, i + 1]] = i + 1, i
    columns = np.concatenate([straight[order] for order in orders], axis=1)
    num, den = FormValues(columns).forms(tuple(range(n)))
    parts = np.abs(np.stack([num, den]).reshape(2, num_forms(n), n, 2)).astype(np.uint64)
    prints = np.einsum("dfop,dp->of", parts, _HASH)  # modulo 2**64
    places = np.argsort(prints, axis=1)
    ranked = np.take_along_axis(prints, places, axis=1)
    assert (ranked[0, 1:] != ranked[0, :-1]).all(), "two forms agree at both points"
    assert (ranked == ranked[0]).all(), "an exchange gave a form that is not in the list"
    images = [np.empty_like(places[0]) for _ in range(n - 1)]
    for image, order in zip(images, places[1:], strict=True):
        image[order] = places[0]
    return images
