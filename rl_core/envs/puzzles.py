"""Draws solvable, pairwise different Countdown puzzles (data path stage 1).

Sets of numbers are drawn without replacement, all their reachable targets form a pool of at least
twice the puzzles wanted (or of everything there is), and puzzles are drawn from the pool without
replacement: every solvable puzzle with the same number of operands is about equally likely. Operand
counts share the rows evenly while there are enough of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rl_core.envs.forms import num_forms
from rl_core.envs.solver import Ints, reachable, solve_many

if TYPE_CHECKING:
    from rl_core.config import CountdownConfig

MAX_SETS = 5_000_000
"""Most sets of numbers that are looked at for one operand count."""
_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class Puzzle:
    """One solvable puzzle."""

    numbers: tuple[int, ...]
    """In the order in which they are shown."""
    target: int
    solution: str
    num_solutions: int
    """Distinct solutions in the normal form of `forms`."""


@dataclass(frozen=True)
class _Pool:
    """Solvable puzzles over one operand count."""

    numbers: Ints
    """int64 [sets, operands], rows sorted."""
    rows: Ints
    """int64 [puzzles]: which set."""
    targets: Ints
    """int64 [puzzles]."""
    complete: bool
    """Whether these are all that exist."""


def generate_puzzles(env: CountdownConfig, *, size: int, seed: int) -> list[Puzzle]:
    """Returns `size` solvable puzzles, unique by (sorted numbers, target), in random order.

    The same arguments give the same puzzles on every machine.

    Raises:
        ValueError: there are fewer such puzzles; the message says how many.
    """
    rng = np.random.default_rng(seed)
    counts = range(env.min_operands, env.max_operands + 1)
    pools = [_draw_pool(env, count, wanted=2 * size, rng=rng) for count in counts]
    exist = sum(len(pool.rows) for pool in pools)
    if exist < size:
        found = "exist" if all(pool.complete for pool in pools) else "were found"
        raise ValueError(
            f"data.train_size + data.test_size = {size} puzzles asked, but only {exist} {found} "
            f"with {env.min_operands} to {env.max_operands} numbers from "
            f"{env.min_number}..{env.max_number} and targets {env.min_target}.."
            f"{env.max_target}: ask for fewer or widen a range"
        )
    puzzles: list[Puzzle] = []
    for left, pool in enumerate(sorted(pools, key=lambda pool: len(pool.rows)), start=-len(pools)):
        take = min(len(pool.rows), (size - len(puzzles)) // -left)
        puzzles += _take(pool, take, rng)
    return [puzzles[i] for i in rng.permutation(size)]


def _draw_pool(
    env: CountdownConfig, num_operands: int, *, wanted: int, rng: np.random.Generator
) -> _Pool:
    """Returns at least `wanted` puzzles, or all there are (within `MAX_SETS` sets of numbers)."""
    span = env.max_number - env.min_number + 1
    total = comb(span + num_operands - 1, num_operands)
    ranks = _distinct_ranks(total, rng)
    numbers: list[Ints] = []
    rows: list[Ints] = []
    targets: list[Ints] = []
    found = seen = 0
    step = max(1, _CHUNK_VALUES // num_forms(num_operands))
    while found < wanted and seen < len(ranks):
        chunk = ranks[seen : seen + step]
        sets = _multisets(chunk, span, num_operands) + env.min_number
        hits, offsets = np.nonzero(reachable(sets, low=env.min_target, high=env.max_target))
        numbers.append(sets)
        rows.append(hits + seen)
        targets.append(offsets + env.min_target)
        found, seen = found + len(hits), seen + len(sets)
    return _Pool(
        np.concatenate(numbers), np.concatenate(rows), np.concatenate(targets), seen == total
    )


def _take(pool: _Pool, size: int, rng: np.random.Generator) -> list[Puzzle]:
    chosen = np.sort(rng.permutation(len(pool.rows))[:size])
    rows, targets = pool.rows[chosen], pool.targets[chosen]
    shown = rng.permuted(pool.numbers[rows], axis=1).tolist()
    puzzles: list[Puzzle] = []
    solved = solve_many(pool.numbers, rows, targets)
    for numbers, target, (solution, count) in zip(shown, targets.tolist(), solved, strict=True):
        assert solution is not None, f"{numbers} was found to reach {target}, then not solved"
        puzzles.append(Puzzle(tuple(numbers), target, solution, count))
    return puzzles


def _distinct_ranks(total: int, rng: np.random.Generator) -> Ints:
    """Returns up to `MAX_SETS` different integers below `total`, in random order."""
    if total <= MAX_SETS:
        return rng.permutation(total)
    ranks, first = np.unique(rng.integers(total, size=MAX_SETS), return_index=True)
    return ranks[np.argsort(first)]


def _multisets(ranks: Ints, span: int, size: int) -> Ints:
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
