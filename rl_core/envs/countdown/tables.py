"""Countdown's Arrow tables: the rows of a data set, and what SQL checks read too (stage 1).

SQL cannot evaluate an expression: solutions are judged here, and a check compares.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rl_core.envs.countdown import DATA_SOURCE, Template, message_templates
from rl_core.envs.countdown.scoring import ExpressionError, parse, run
from rl_core.schema import dataset_schema

COUNTDOWN_DATASET = dataset_schema(
    pa.struct([("target", pa.int64()), ("numbers", pa.list_(pa.int64()))]),
    own=[("nums", pa.list_(pa.int64())), ("target", pa.int64())],
)
_TYPES = {
    "index": pa.int64(),
    "nums": pa.list_(pa.int64()),
    "target": pa.int64(),
    "solution": pa.large_string(),
    "num_solutions": pa.int64(),
}
"""Other writers' files have dictionaries or large lists of the same values."""
_CHUNK_ROWS = 65_536
"""A column of strings holds 2 GiB at most: prompts of so many rows fit many times over."""


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
    # By parts: all prompts at once would be held three times over.
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
    """Says whether the reward would call it correct; a row with a null is not."""
    if solution is None or nums is None or None in nums:
        return False
    try:
        used, program = parse(solution)
        return sorted(used) == sorted(nums) and run(program, used) == target
    except ExpressionError:
        return False
