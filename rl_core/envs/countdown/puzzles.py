"""Countdown's puzzles: drawn, written as rows, and judged for SQL checks (data path stage 1).

A puzzle is a multiset of numbers (equal ones allowed) and a target that the solver reaches exactly:
a perfect player scores 1.0. They are drawn so:

1. Per operand count, multisets are drawn without replacement, each equally likely, until they make
   twice as many targets as rows are wanted, or all have been drawn (or `MAX_SETS` of them).
2. From all their (multiset, target) pairs rows are drawn without replacement, each equally likely.
   So every solvable puzzle has the same chance, and a target or a number is as frequent as among
   all puzzles: targets that many sets make, small ones above all, come more often. If not all
   multisets were drawn, puzzles over the same numbers come together more often than by chance.
3. Operand counts share the rows evenly; if fewer puzzles of one exist, the others fill up.
4. Numbers are shown in random order, and rows stand in random order: splits are cut from one draw.
"""

import re
from collections.abc import Mapping
from math import comb
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rl_core.envs.countdown.forms import Ints, num_forms
from rl_core.envs.countdown.scoring import ExpressionError, parse, run
from rl_core.envs.countdown.solver import Solved, solution_texts, solve_range
from rl_core.envs.countdown.templates import DATA_SOURCE, Template, message_templates
from rl_core.schema import dataset_schema

COUNTDOWN_DATASET = dataset_schema(
    pa.struct([("target", pa.int64()), ("numbers", pa.list_(pa.int64()))]),
    columns=[("nums", pa.list_(pa.int64())), ("target", pa.int64())],
)
_TYPES = {
    "index": pa.int64(),
    "nums": pa.list_(pa.int64()),
    "target": pa.int64(),
    "solution": pa.large_string(),
    "num_solutions": pa.int64(),
}
"""Columns are cast to these: files of others may have dictionaries or large lists."""
_CHUNK_ROWS = 65_536
"""A column of strings holds 2 GiB at most: prompts of so many rows take far less."""
Range: TypeAlias = tuple[int, int]
"""The smallest and the largest value."""
MAX_SETS = 5_000_000
"""Most sets of numbers that are looked at for one operand count."""
_CHUNK_VALUES = 1 << 22


class _Pool(NamedTuple):
    """Solvable puzzles over one operand count."""

    numbers: Ints
    """int64 [sets, operands], rows sorted."""
    solved: Solved
    complete: bool
    """Whether these are all that exist."""


def generate_puzzles(
    *, operands: Range, number: Range, target: Range, size: int, seed: int
) -> pl.DataFrame:
    """Returns `size` solvable puzzles, unique by (sorted numbers, target), in random order.

    Columns are `nums`, in the order in which they are shown; `target`; `solution`; and
    `num_solutions`, distinct ones in the normal form of `forms`. The same arguments give the same
    puzzles on every machine. ValueError says how many there are, if too few.
    """
    rng = np.random.default_rng(seed)
    fewest, most = operands
    counts = range(fewest, most + 1)
    pools = [_draw_pool(count, number, target, at_least=2 * size, rng=rng) for count in counts]
    exist = sum(len(pool.solved.rows) for pool in pools)
    if exist < size:
        verb = "exist" if all(pool.complete for pool in pools) else "were found"
        raise ValueError(
            f"data.train_size + data.test_size = {size} puzzles asked, but only {exist} {verb} "
            f"with {fewest} to {most} numbers from {number[0]}..{number[1]} and targets "
            f"{target[0]}..{target[1]}: ask for fewer or widen a range"
        )
    parts: list[pl.DataFrame] = []
    pools.sort(key=lambda pool: len(pool.solved.rows))
    for left, pool in enumerate(pools, start=-len(pools)):
        share = (size - sum(part.height for part in parts)) // -left
        parts.append(_take(pool, min(len(pool.solved.rows), share), rng))
    return pl.concat(parts)[rng.permutation(size)]


def _draw_pool(
    num_operands: int, number: Range, target: Range, *, at_least: int, rng: np.random.Generator
) -> _Pool:
    """Returns at least so many puzzles, or all there are (within `MAX_SETS` sets of numbers)."""
    span = number[1] - number[0] + 1
    total = comb(span + num_operands - 1, num_operands)
    if total <= MAX_SETS:
        ranks = rng.permutation(total)
    else:
        drawn = pl.Series(rng.integers(total, size=MAX_SETS))
        ranks = drawn.unique(maintain_order=True).to_numpy()
    step = max(1, _CHUNK_VALUES // num_forms(num_operands))
    numbers = list[Ints]()
    solved = list[Solved]()
    seen = 0
    while sum(len(part.rows) for part in solved) < at_least and seen < len(ranks):
        sets = multisets(ranks[seen : seen + step], span, num_operands) + number[0]
        part = solve_range(sets, low=target[0], high=target[1])
        numbers.append(sets)
        solved.append(part._replace(rows=part.rows + seen))
        seen += len(sets)
    return _Pool(
        np.concatenate(numbers),
        Solved(*map(np.concatenate, zip(*solved, strict=True))),
        seen == total,
    )


def _take(pool: _Pool, size: int, rng: np.random.Generator) -> pl.DataFrame:
    chosen = np.sort(rng.permutation(len(pool.solved.rows))[:size])
    rows, targets, counts, first_forms = (column[chosen] for column in pool.solved)
    sets = pool.numbers[rows]
    return pl.DataFrame(
        {
            "nums": pl.Series(rng.permuted(sets, axis=1)).arr.to_list(),
            "target": targets,
            "solution": pl.Series(solution_texts(sets, first_forms).tolist(), dtype=pl.String),
            "num_solutions": counts,
        }
    )


def multisets(ranks: Ints, span: int, size: int) -> Ints:
    """Returns the sorted multisets of `size` values below `span` that have these ranks.

    Source: the combinatorial number system; a multiset is a set whose i-th member is i lower.
    """
    members: list[npt.NDArray[np.int64]] = []
    for i in range(size, 0, -1):
        table = np.asarray([comb(j, i) for j in range(span + size)], dtype=np.int64)
        member = np.searchsorted(table, ranks, side="right") - 1
        ranks = ranks - table[member]
        members.append(member - (i - 1))
    return np.stack(members[::-1], axis=1)


def countdown_table(puzzles: pl.DataFrame, *, split: str, template: Template) -> pa.Table:
    """Returns the rows of one split, in the order of the puzzles."""
    columns = {
        "nums": pl.col("nums"),
        "target": pl.col("target"),
        "data_source": pl.lit(DATA_SOURCE),
        "prompt": _prompts(template),
        "ability": pl.lit("math"),
        "reward_model": pl.struct(
            style=pl.lit("rule"), ground_truth=pl.struct("target", numbers="nums")
        ),
        "extra_info": pl.struct(
            pl.lit(split).alias("split"), pl.col("index", "num_solutions", "solution")
        ),
    }
    # In parts: all prompts at once would be in memory three times.
    parts = [
        part.select(**columns).to_arrow().cast(COUNTDOWN_DATASET)
        for part in puzzles.with_row_index().iter_slices(_CHUNK_ROWS)
    ]
    return pa.concat_tables([COUNTDOWN_DATASET.empty_table(), *parts])


def _prompts(template: Template) -> pl.Expr:
    """Returns each row's messages, as `render_messages` does."""
    numbers = pl.format("[{}]", pl.col("nums").cast(pl.List(pl.String)).list.join(", "))
    texts = {"{numbers}": numbers, "{target}": pl.col("target").cast(pl.String)}
    messages = []
    for message in message_templates(template):
        pieces = re.split(r"({numbers}|{target})", message["content"])
        content = pl.concat_str([texts.get(piece, pl.lit(piece)) for piece in pieces])
        messages.append(pl.struct(role=pl.lit(message["role"]), content=content))
    return pl.concat_arr(messages).arr.to_list()  # `concat_list` takes ten times as long


def solutions_table(splits: Mapping[str, pa.Table]) -> pa.Table:
    """Returns one row per problem: what it is, its stored solution, and `is_correct`."""
    tables = []
    for split, rows in splits.items():
        extra = rows["extra_info"]
        columns = {
            "index": pc.struct_field(extra, "index"),
            "nums": rows["nums"],
            "target": rows["target"],
            "solution": pc.struct_field(extra, "solution"),
            "num_solutions": pc.struct_field(extra, "num_solutions"),
        }
        columns = {name: columns[name].cast(kind) for name, kind in _TYPES.items()}
        judged = (columns[name].to_pylist() for name in ("solution", "nums", "target"))
        columns["is_correct"] = pa.array(map(_is_correct, *judged), pa.bool_())
        columns["split"] = pa.repeat(split, rows.num_rows)
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def _is_correct(solution: str | None, nums: list[int] | None, target: int | None) -> bool:
    """Returns whether the reward calls a solution correct; one in a row with a null is not."""
    if solution is None or nums is None or None in nums:
        return False
    try:
        used, program = parse(solution)
        return sorted(used) == sorted(nums) and run(program, used) == target
    except ExpressionError:
        return False
