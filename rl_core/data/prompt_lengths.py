"""Counts the tokens of prompts (data path stage 2) without tokenizing hundreds of thousands.

A templated prompt is as long as its parts: the template's own tokens, and what each number and the
target add. Not every tokenizer is like that (one may merge "5, 7" into one token), so the sum is
compared with the tokenizer on a sample of the prompts, and if one sum is wrong, none is used.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from rl_core.types import Message

Ints: TypeAlias = npt.NDArray[np.int64]
Messages: TypeAlias = Sequence[Message]
CountTokens: TypeAlias = Callable[[Sequence[Messages]], Sequence[int]]
Render: TypeAlias = Callable[[Sequence[int], int], Messages]
"""The prompt of some numbers and a target."""

SAMPLE_ROWS = 2_000
_BATCH_ROWS = 4_096


def measure_all(prompts: pl.Series, count: CountTokens) -> Ints:
    """Returns the tokens of every prompt, each of them tokenized: int64 [rows]."""
    starts = range(0, len(prompts), _BATCH_ROWS)
    lengths = [n for i in starts for n in count(prompts[i : i + _BATCH_ROWS].to_list())]
    return np.asarray(lengths, dtype=np.int64)


def measure_by_parts(
    rows: pl.DataFrame, render: Render, count: CountTokens, *, sample_rows: int = SAMPLE_ROWS
) -> Ints | None:
    """Returns the tokens of every prompt as sums of parts, int64 [rows]; None if that is not exact.

    Sums are compared with the tokenizer for `sample_rows` random rows (the same ones each time),
    the first row of every number and every target, and the shortest and the longest prompt.

    `rows` have `prompt`, list of {role, content}; `nums`, list of int64; `target`, int64. No nulls;
    every prompt is what `render` makes of its numbers and target.
    """
    values, first_uses = np.unique(rows["nums"].explode().to_numpy(), return_index=True)
    targets, first_targets = np.unique(rows["target"].to_numpy(), return_index=True)
    sums = _sum_parts(rows, values.tolist(), targets.tolist(), render, count)
    owners = np.repeat(np.arange(rows.height), rows["nums"].list.len().to_numpy())
    drawn = np.random.default_rng(0).choice(
        rows.height, size=min(sample_rows, rows.height), replace=False
    )
    sample = np.unique(
        [*drawn, *owners[first_uses], *first_targets, int(sums.argmin()), int(sums.argmax())]
    )
    exact = measure_all(rows["prompt"].gather(sample), count)
    return sums if np.array_equal(sums[sample], exact) else None


def _sum_parts(
    rows: pl.DataFrame, values: list[int], targets: list[int], render: Render, count: CountTokens
) -> Ints:
    """Measures each part once, in a prompt in which only this part changes."""
    sizes: list[int] = rows["nums"].list.len().unique(maintain_order=True).to_list()
    one = values[0]
    target = targets[0]
    most = max(sizes)
    plain = {size: [one] * size for size in sizes}
    counted = iter(
        count(
            [
                *(render(plain[size], target) for size in sizes),
                *(render([one, value, *plain[most][2:]], target) for value in values),
                *(render(plain[most], other) for other in targets),
            ]
        )
    )
    by_size = {size: next(counted) for size in sizes}
    by_value = {value: next(counted) - by_size[most] for value in values}
    by_target = {other: next(counted) - by_size[most] for other in targets}
    total = rows.select(
        pl.col("nums").list.len().replace_strict(by_size, return_dtype=pl.Int64)
        + pl.col("nums")
        .list.eval(pl.element().replace_strict(by_value, return_dtype=pl.Int64))
        .list.sum()
        + pl.col("target").replace_strict(by_target, return_dtype=pl.Int64)
    )
    return total.to_series().to_numpy()
