"""Draws solvable, pairwise different Countdown puzzles (data path stage 1).

A puzzle is a multiset of numbers (equal ones allowed) and a target that the solver reaches exactly:
a perfect player scores 1.0. They are drawn so:

1. Per operand count, multisets are drawn without replacement, each equally likely, until they make
   twice as many targets as rows are wanted, or all have been drawn (or `MAX_SETS` of them).
2. From all their (multiset, target) pairs rows are drawn without replacement, each equally likely.
   So every solvable puzzle has the same chance, and a target or a number is as frequent as among
   all puzzles: targets that many sets make, small ones above all, come more often. Where not all
   multisets were drawn, puzzles over the same numbers come together more often than by chance.
3. Operand counts share the rows evenly; if fewer puzzles of one exist, the others fill up.
4. Numbers are shown in random order, and rows stand in random order: splits are cut from one draw.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import islice
from math import comb
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from rl_core.envs.countdown.forms import Ints, num_forms
from rl_core.envs.countdown.solver import Solved, solution_texts, solve_range

if TYPE_CHECKING:
    from rl_core.envs.countdown import CountdownConfig

MAX_SETS = 5_000_000
"""Most sets of numbers that are looked at for one operand count."""
_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class Puzzles:
    """Solvable puzzles, as columns."""

    numbers: Ints
    """int64 [puzzles, most operands], in the order in which they are shown; then zeros."""
    targets: Ints
    """int64 [puzzles]."""
    solutions: npt.NDArray[np.object_]
    """str [puzzles]."""
    num_solutions: Ints
    """int64 [puzzles]: distinct solutions in the normal form of `forms`."""

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, rows: slice | Ints) -> Puzzles:
        return Puzzles(*(getattr(self, field.name)[rows] for field in fields(self)))


_Columns = TypeVar("_Columns", Puzzles, Solved)


@dataclass(frozen=True)
class _Pool:
    """Solvable puzzles over one operand count."""

    numbers: Ints
    """int64 [sets, operands], rows sorted."""
    solved: Solved
    complete: bool
    """Whether these are all that exist."""

    def __len__(self) -> int:
        return len(self.solved.rows)


def generate_puzzles(env: CountdownConfig, *, size: int, seed: int) -> Puzzles:
    """Returns `size` solvable puzzles, unique by (sorted numbers, target), in random order.

    The same arguments give the same puzzles on every machine. ValueError says how many there are.
    """
    rng = np.random.default_rng(seed)
    counts = range(env.min_operands, env.max_operands + 1)
    pools = [_draw_pool(env, count, wanted=2 * size, rng=rng) for count in counts]
    exist = sum(len(pool) for pool in pools)
    if exist < size:
        found = "exist" if all(pool.complete for pool in pools) else "were found"
        raise ValueError(
            f"data.train_size + data.test_size = {size} puzzles asked, but only {exist} {found} "
            f"with {env.min_operands} to {env.max_operands} numbers from "
            f"{env.min_number}..{env.max_number} and targets {env.min_target}.."
            f"{env.max_target}: ask for fewer or widen a range"
        )
    parts: list[Puzzles] = []
    taken = 0
    for left, pool in enumerate(sorted(pools, key=len), start=-len(pools)):
        parts.append(_take(pool, min(len(pool), (size - taken) // -left), env.max_operands, rng))
        taken += len(parts[-1])
    return _concatenate(parts)[rng.permutation(size)]


def _draw_pool(
    env: CountdownConfig, num_operands: int, *, wanted: int, rng: np.random.Generator
) -> _Pool:
    """Returns at least `wanted` puzzles, or all there are (within `MAX_SETS` sets of numbers)."""
    span = env.max_number - env.min_number + 1
    total = comb(span + num_operands - 1, num_operands)
    ranks = (
        iter(rng.permutation(total))
        if total <= MAX_SETS
        else _different(rng.integers(total, size=MAX_SETS))
    )
    step = max(1, _CHUNK_VALUES // num_forms(num_operands))
    numbers: list[Ints] = []
    solved: list[Solved] = []
    found = seen = 0
    while found < wanted and len(chunk := np.fromiter(islice(ranks, step), np.int64)):
        sets = multisets(chunk, span, num_operands) + env.min_number
        own = solve_range(sets, low=env.min_target, high=env.max_target)
        numbers.append(sets)
        solved.append(replace(own, rows=own.rows + seen))
        found, seen = found + len(own.rows), seen + len(sets)
    return _Pool(np.concatenate(numbers), _concatenate(solved), seen == total)


def _take(pool: _Pool, size: int, width: int, rng: np.random.Generator) -> Puzzles:
    chosen = np.sort(rng.permutation(len(pool))[:size])
    solved = pool.solved
    sets = pool.numbers[solved.rows[chosen]]
    shown = np.zeros((size, width), dtype=np.int64)
    shown[:, : sets.shape[1]] = rng.permuted(sets, axis=1)
    texts = solution_texts(sets, solved.first_forms[chosen])
    return Puzzles(shown, solved.targets[chosen], texts, solved.counts[chosen])


def _concatenate(parts: Sequence[_Columns]) -> _Columns:
    columns = (
        np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(parts[0])
    )
    return type(parts[0])(*columns)


def _different(drawn: Ints) -> Iterator[int]:
    """Yields what was drawn, but for repetitions; those go as far as it is looked at."""
    seen: set[int] = set()
    for rank in drawn:
        if rank not in seen:
            seen.add(rank)
            yield rank


def multisets(ranks: Ints, span: int, size: int) -> Ints:
    """Returns the sorted multisets of `size` values below `span` that have these ranks.

    Source: the combinatorial number system; a multiset is a set whose i-th member lost i.
    """
    members: list[npt.NDArray[np.int64]] = []
    for i in range(size, 0, -1):
        table = np.asarray([comb(j, i) for j in range(span + size)], dtype=np.int64)
        member = np.searchsorted(table, ranks, side="right") - 1
        ranks = ranks - table[member]
        members.append(member - (i - 1))
    return np.stack(members[::-1], axis=1)
