"""Puzzles as the rows of a data set (data path stage 1): Arrow columns, never row by row."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rl_core.envs.countdown.prompts import DATA_SOURCE, Template, message_templates
from rl_core.envs.countdown.puzzles import Puzzles, generate_puzzles
from rl_core.envs.countdown.settings import CountdownConfig
from rl_core.schema import dataset_schema

COUNTDOWN_DATASET = dataset_schema(
    pa.struct([("target", pa.int64()), ("numbers", pa.list_(pa.int64()))]),
    own=[("nums", pa.list_(pa.int64())), ("target", pa.int64())],
)
_CHUNK_ROWS = 65_536
"""A column of strings holds 2 GiB at most: prompts of so many rows fit many times over."""


def generated_tables(
    env: CountdownConfig, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    """Returns both splits, cut from one draw of puzzles.

    Raises:
        ValueError: fewer puzzles exist than are asked for.
    """
    puzzles = generate_puzzles(env, size=train_size + test_size, seed=seed)
    parts = {"train": puzzles[test_size:], "test": puzzles[:test_size]}
    return {
        split: countdown_table(part, split=split, template=env.prompt_template)
        for split, part in parts.items()
    }


def countdown_table(puzzles: Puzzles, *, split: str, template: Template) -> pa.Table:
    """Returns the rows of one split, with the schema `COUNTDOWN_DATASET`.

    Args:
        puzzles: in the order of the rows.
        split: its name, for `extra_info`.
        template: of the prompts.
    """
    tables = [
        _chunk(puzzles[start : start + _CHUNK_ROWS], start, split, template)
        for start in range(0, len(puzzles), _CHUNK_ROWS)
    ]
    return pa.concat_tables([COUNTDOWN_DATASET.empty_table(), *tables])


def _chunk(puzzles: Puzzles, start: int, split: str, template: Template) -> pa.Table:
    size = len(puzzles)
    given = puzzles.numbers > 0
    offsets = pa.array(np.append(0, np.cumsum(given.sum(axis=1))), pa.int32())
    numbers = pa.array(puzzles.numbers[given], pa.int64())
    nums = pa.ListArray.from_arrays(offsets, numbers)
    target = pa.array(puzzles.targets, pa.int64())
    truth, extra = (COUNTDOWN_DATASET.field(name).type for name in ("reward_model", "extra_info"))
    columns = {
        "nums": nums,
        "target": target,
        "data_source": pa.repeat(DATA_SOURCE, size),
        "prompt": _prompts(
            template,
            numbers=pc.binary_join(
                pa.ListArray.from_arrays(offsets, pc.cast(numbers, pa.string())), ", "
            ),
            target=pc.cast(target, pa.string()),
        ),
        "ability": pa.repeat("math", size),
        "reward_model": _struct(
            truth,
            style=pa.repeat("rule", size),
            ground_truth=_struct(truth.field("ground_truth").type, target=target, numbers=nums),
        ),
        "extra_info": _struct(
            extra,
            split=pa.repeat(split, size),
            index=pa.array(np.arange(start, start + size), pa.int64()),
            num_solutions=pa.array(puzzles.num_solutions, pa.int64()),
            solution=pa.array(puzzles.solutions, pa.string()),
        ),
    }
    return pa.table(columns, schema=COUNTDOWN_DATASET)


def _prompts(
    template: Template, *, numbers: pa.StringArray, target: pa.StringArray
) -> pa.ListArray:
    """Returns each row's messages, as `render_messages` does."""
    texts = {"{numbers}": pc.binary_join_element_wise("[", numbers, "]", ""), "{target}": target}
    messages = message_templates(template)
    size, kind = len(target), COUNTDOWN_DATASET.field("prompt").type
    parts = []
    for message in messages:
        pieces = re.split(r"({numbers}|{target})", message["content"])
        content = pc.binary_join_element_wise(*(texts.get(piece, piece) for piece in pieces), "")
        if isinstance(content, pa.Scalar):
            content = pa.repeat(content, size)
        parts.append(
            _struct(kind.value_type, role=pa.repeat(message["role"], size), content=content)
        )
    offsets = np.arange(0, size * len(parts) + 1, len(parts))
    by_row = np.arange(size * len(parts)).reshape(len(parts), size).T.ravel()
    together = parts[0] if len(parts) == 1 else pa.concat_arrays(parts).take(pa.array(by_row))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), together, type=kind)


def _struct(kind: pa.StructType, **columns: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays([columns[field.name] for field in kind], fields=list(kind))
