"""Texts of many solutions at once (data path stage 1).

Not the text of one form (`forms`): solutions that differ in nothing but their numbers are written
together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rl_core.envs.countdown.solving.form_values import Ints
from rl_core.envs.countdown.solving.forms import (
    NUMBER,
    SUM,
    Form,
    equality_patterns,
    form_at,
    form_text,
    num_forms,
)


def solution_texts(numbers: Ints, forms: Ints) -> npt.NDArray[np.object_]:
    """Returns the text of form `forms[i]` over `numbers[i]`, as `form_text(form_at(...))` does.

    Args:
        numbers: int64 [solutions, n], each row sorted.
        forms: int64 [solutions], below `num_forms(n)`.

    Returns:
        str [solutions].
    """
    texts = np.full(len(forms), "", dtype=object)
    for rows in _groups(equality_patterns(numbers) * num_forms(numbers.shape[1]) + forms):
        index, own = int(forms[rows[0]]), numbers[rows]
        # Numbers enter a form by their order alone: a place that stands for its number will do.
        form = form_at(index, np.searchsorted(own[0], own[0]).tolist())
        for alike in _groups(_signs(form, own.T)):
            template, places = _template(index, own[alike[0]])
            filled = own[alike][:, places].tolist()
            texts[rows[alike]] = [template % tuple(values) for values in filled]
    return texts


def _groups(keys: Ints) -> Iterator[Ints]:
    """Yields the places of each different key, ascending."""
    order = np.argsort(keys, kind="stable")
    starts = np.flatnonzero(np.diff(keys[order])) + 1
    yield from (group for group in np.split(order, starts) if len(group))


def _template(index: int, numbers: Ints) -> tuple[str, list[int]]:
    """Returns a form's text with %d for each number, and the places of the numbers in it."""
    text = form_text(form_at(index, numbers.tolist()))
    places = np.searchsorted(numbers, [int(number) for number in re.findall(r"\d+", text)])
    return re.sub(r"\d+", "%d", text), places.tolist()


def _signs(form: Form, columns: Ints) -> Ints:
    """Returns int64 [rows], one number for the signs of all sums in a form: they decide its text.

    Args:
        form: over places instead of numbers.
        columns: int64 [places, rows].
    """
    codes = np.zeros(columns.shape[1], dtype=np.int64)
    one = np.ones_like(codes)

    def value(form: Form) -> tuple[Ints, Ints]:
        kind, members = form
        if kind == NUMBER:
            return columns[members], one
        num, den = (0 * one, one) if kind == SUM else (one, one)
        for member, power in members:  # the sign of a term, or the exponent of a factor
            own_num, own_den = value(member)
            if kind == SUM:
                num, den = num * own_den + power * own_num * den, den * own_den
            elif power > 0:
                num, den = num * own_num, den * own_den
            else:
                num, den = num * own_den, den * own_num
        if kind == SUM:
            codes[:] = 3 * codes + np.sign(num) * np.sign(den) + 1
        return num, den

    value(form)
    return codes
