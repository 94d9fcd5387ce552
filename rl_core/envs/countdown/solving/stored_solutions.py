"""Proves stored solutions of Countdown, hundreds of thousands at a time (data path stage 1).

The scorer takes tens of microseconds per text, too long for a whole data set. But texts repeat one
another's shape: the text with each digit as a 0. Of every shape the scorer reads the first text; it
decides whether the rest is read at all. All texts of a well-formed shape then have their numbers at
the same places, and are evaluated as columns, in exact integers. This can only ever acquit: what is
not proved correct here, for whatever reason, the scorer judges itself.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.countdown.solving.solver import solve, solve_many

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Fractions: TypeAlias = tuple[Ints, Ints, Bools]
"""num and den, int64 [rows], not reduced, and whether nothing was divided by zero: bool [rows]."""

_LEAST_ROWS = 4
"""A shape of fewer texts costs more than scoring them."""
_WELL_FORMED = ("correct", "wrong_value", "wrong_numbers", "division_by_zero")
_LARGEST_SOLVED_TOGETHER = 9_999
"""A solver asked for many problems looks for every target up to the largest."""
_MOST_DIGITS = 9
_MOST_BITS = 62.0


def judge_solutions(solutions: pa.Array, numbers: pa.Array, targets: pa.Array) -> Bools:
    """Returns which solutions the scorer calls correct, as if it had read each of them.

    Args:
        solutions: large_string [rows].
        numbers: list<int64> [rows], the numbers to be used; nulls within are left out.
        targets: int64 [rows].

    Returns:
        bool [rows]; a row with a null is not correct.
    """
    rows = _Rows(solutions, numbers, targets)
    correct = np.zeros(len(targets), dtype=np.bool_)
    for members in rows.by_shape():
        if len(members) < _LEAST_ROWS or (verdict := rows.verdict(members[0])) not in _WELL_FORMED:
            continue
        proved = rows.prove(members)
        # The scorer has the last word on the shape, should the two ever disagree.
        if proved[0] == (verdict == "correct"):
            correct[members] = proved
    for row in np.flatnonzero(~correct & rows.whole).tolist():
        correct[row] = rows.verdict(row) == "correct"
    return correct


def recount_solutions(numbers: list[list[int]], targets: list[int]) -> list[int]:
    """Returns how many solutions the exact solver finds for each problem, as `solver.solve`."""
    counts = [0] * len(targets)
    together: defaultdict[int, list[int]] = defaultdict(list)
    for place, (given, target) in enumerate(zip(numbers, targets, strict=True)):
        if target <= _LARGEST_SOLVED_TOGETHER:
            together[len(given)].append(place)
        else:
            counts[place] = solve(given, target)[1]
    for places in together.values():
        sets = np.sort(np.array([numbers[place] for place in places], dtype=np.int64), axis=1)
        wanted = np.array([targets[place] for place in places], dtype=np.int64)
        solved = solve_many(sets, np.arange(len(places)), wanted)
        for place, (_, count) in zip(places, solved, strict=True):
            counts[place] = count
    return counts


class _Rows:
    """The columns as flat arrays."""

    def __init__(self, solutions: pa.Array, numbers: pa.Array, targets: pa.Array) -> None:
        self.whole = _valid(solutions) & _valid(numbers) & _valid(targets)
        """bool [rows]: no nulls."""
        self.texts = pc.fill_null(solutions, "")
        _, offsets, data = self.texts.buffers()
        begin = self.texts.offset
        self.offsets = np.frombuffer(offsets, np.int64)[begin : begin + len(self.texts) + 1]
        """int64 [rows + 1] into `bytes`."""
        self.bytes = np.frombuffer(data or b"", np.uint8)
        self.numbers = numbers
        lengths = pc.fill_null(pc.list_value_length(numbers), 0).to_numpy(zero_copy_only=False)
        self.counts = lengths.astype(np.int64)
        """How many numbers a row has."""
        self.firsts = np.cumsum(self.counts) - self.counts
        flat = numbers.flatten()
        self.flat = pc.fill_null(flat, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        """All rows' numbers; no text has a -1, so a row with a null is left to the scorer."""
        self.targets = pc.fill_null(targets, 0).to_numpy(zero_copy_only=False).astype(np.int64)

    def by_shape(self) -> list[Ints]:
        """Returns the rows of each shape, ascending; rows with nulls are left out."""
        masked = self.bytes.copy()
        masked[_is_digit(masked)] = ord("0")
        shapes = pa.LargeStringArray.from_buffers(
            len(self.texts),
            pa.py_buffer(np.ascontiguousarray(self.offsets)),
            pa.py_buffer(masked),
        ).dictionary_encode()
        codes = shapes.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        order = order[self.whole[order]]
        return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1) if len(order) else []

    def verdict(self, row: int) -> str:
        """Returns what the scorer says."""
        numbers = [number for number in self.numbers[row].as_py() if number is not None]
        answer = f"<answer>{self.texts[row].as_py()}</answer>"
        return score_response(answer, numbers, int(self.targets[row])).verdict

    def prove(self, rows: Ints) -> Bools:
        """Returns which of these rows of one well-formed shape are surely correct."""
        begins = self.offsets[rows]
        length = int(self.offsets[rows[0] + 1] - begins[0])
        tokens = _tokens(self.bytes[begins[0] : begins[0] + length].tobytes().decode())
        places = [place for place in tokens if isinstance(place, tuple)]
        sure = self.counts[rows] == len(places)
        if (
            not sure.any()
            or any(stop - start > _MOST_DIGITS for start, stop in places)
            # A text may hold tags, of which the scorer reads the last.
            or not all(isinstance(token, tuple) or token in "()+-*/" for token in tokens)
        ):
            return np.zeros(len(rows), dtype=np.bool_)
        used = [self._read(begins, *place) for place in places]
        sure &= np.all(
            [
                (number >= 10 ** (stop - start - 1)) | (stop - start == 1)  # no leading zero
                for number, (start, stop) in zip(used, places, strict=True)
            ],
            axis=0,
        )
        wanted = np.minimum(self.firsts[rows][:, None] + np.arange(len(places)), len(self.flat) - 1)
        given = np.sort(self.flat[wanted], axis=1)
        sure &= np.all(given == np.sort(np.stack(used, axis=1), axis=1), axis=1)
        # By induction |num| + |den| of any part is at most the product of its numbers, each + 1.
        sure &= sum(np.log2(1.0 + number) for number in used) < _MOST_BITS
        num, den, defined = _Columns(tokens, used).value()
        sure &= defined & (den != 0)
        den = np.where(sure, den, 1)
        proved: Bools = sure & (num % den == 0) & (num // den == self.targets[rows])
        return proved

    def _read(self, begins: Ints, start: int, stop: int) -> Ints:
        number = np.zeros(len(begins), dtype=np.int64)
        for place in range(start, stop):
            number = 10 * number + (self.bytes[begins + place] - ord("0"))
        return number


class _Columns:
    """Evaluates a well-formed expression over columns of numbers."""

    def __init__(self, tokens: list[str | tuple[int, int]], numbers: list[Ints]) -> None:
        self.tokens = [*tokens, ""]
        self.numbers = iter(numbers)
        self.next = 0

    def value(self) -> Fractions:
        """Terms, added and subtracted from left to right."""
        total = self._term()
        while self._peek() in ("+", "-"):
            sign = 1 if self._take() == "+" else -1
            (num, den, defined), (num_2, den_2, defined_2) = total, self._term()
            total = num * den_2 + sign * num_2 * den, den * den_2, defined & defined_2
        return total

    def _term(self) -> Fractions:
        product = self._factor()
        while self._peek() in ("*", "/"):
            divides = self._take() == "/"
            (num, den, defined), (num_2, den_2, defined_2) = product, self._factor()
            if divides:
                num_2, den_2, defined_2 = den_2, num_2, defined_2 & (num_2 != 0)
            product = num * num_2, den * den_2, defined & defined_2
        return product

    def _factor(self) -> Fractions:
        token = self._take()
        if token == "-":
            num, den, defined = self._factor()
            return -num, den, defined
        if token == "(":
            inner = self.value()
            self._take()
            return inner
        number = next(self.numbers)
        return number, np.ones_like(number), np.ones(len(number), dtype=np.bool_)

    def _peek(self) -> str | tuple[int, int]:
        return self.tokens[self.next]

    def _take(self) -> str | tuple[int, int]:
        self.next += 1
        return self.tokens[self.next - 1]


def _tokens(text: str) -> list[str | tuple[int, int]]:
    """Returns operators and parentheses, and for each number where its digits begin and end."""
    tokens: list[str | tuple[int, int]] = []
    place = 0
    while place < len(text):
        stop = place + 1
        if text[place].isdigit():
            while stop < len(text) and text[stop].isdigit():
                stop += 1
            tokens.append((place, stop))
        elif not text[place].isspace():
            tokens.append(text[place])
        place = stop
    return tokens


def _is_digit(characters: npt.NDArray[np.uint8]) -> Bools:
    digits: Bools = (characters >= ord("0")) & (characters <= ord("9"))
    return digits


def _valid(array: pa.Array) -> Bools:
    valid: Bools = array.is_valid().to_numpy(zero_copy_only=False)
    return valid
