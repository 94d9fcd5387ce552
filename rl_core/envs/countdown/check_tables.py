"""What data checks need beside the two splits: solutions judged and difficulties counted again.

SQL cannot evaluate an expression; this hands it tables with the answers, which it then compares.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rl_core.envs.countdown.arithmetic import ExpressionError, parse, run
from rl_core.envs.countdown.solving.forms import num_forms
from rl_core.envs.countdown.solving.solver import solve_many

SAMPLE_ROWS = 512
"""Problems whose solutions are counted again, at most."""
_SAMPLE_FORMS = 4_000_000
"""Expressions that may be tried for it: a problem of six numbers has 443,825."""
_MAX_OPERANDS, _MAX_NUMBER = 6, 999
"""What the solver takes."""
_TYPES = {
    "index": pa.int64(),
    "nums": pa.list_(pa.int64()),
    "target": pa.int64(),
    "solution": pa.large_string(),
    "num_solutions": pa.int64(),
}
"""Other writers' files have dictionaries or large lists of the same values."""


def solutions_table(splits: Mapping[str, pa.Table]) -> pa.Table:
    """Returns one row per problem: what it is, its stored solution, and `is_correct`.

    Args:
        splits: `train` and `test`, with the columns of a Countdown data set.
    """
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


def recounts_table(solutions: pa.Table) -> pa.Table:
    """Returns some rows of `solutions_table`, the same ones each time, with `recounted`.

    Rows that no solver could take (a null, a number out of its range) are not drawn: other checks
    name them.
    """
    drawn = np.random.default_rng(0).permutation(solutions.num_rows)[: 2 * SAMPLE_ROWS]
    candidates = solutions.take(drawn)
    chosen: list[int] = []
    tried = 0
    for row, (nums, target) in enumerate(_problems(candidates)):
        if len(chosen) == SAMPLE_ROWS or not _is_solvable(nums, target):
            continue
        tried += num_forms(len(nums))
        if tried > _SAMPLE_FORMS:
            break
        chosen.append(row)
    sample = candidates.take(pa.array(chosen, pa.int64()))
    problems = _problems(sample)
    solved = solve_many([nums for nums, _ in problems], [target for _, target in problems])
    counts = [count for _, count in solved]
    return sample.append_column("recounted", pa.array(counts, pa.int64()))


def _is_correct(solution: str | None, nums: list[int] | None, target: int | None) -> bool:
    """Says whether the reward would call it correct; a row with a null is not."""
    if solution is None or nums is None or None in nums:
        return False
    try:
        used, program = parse(solution)
        return sorted(used) == sorted(nums) and run(program, used) == target
    except ExpressionError:
        return False


def _problems(table: pa.Table) -> list[tuple[list[int], int]]:
    return list(zip(table["nums"].to_pylist(), table["target"].to_pylist(), strict=True))


def _is_solvable(nums: list[int] | None, target: int | None) -> bool:
    return (
        nums is not None
        and 1 <= len(nums) <= _MAX_OPERANDS
        and all(number is not None and 1 <= number <= _MAX_NUMBER for number in nums)
        and target is not None
        and target >= 1
    )
