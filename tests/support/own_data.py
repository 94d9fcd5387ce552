"""A few problems in the shapes that other people's files have."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.envs.countdown.templates import Template, render_messages

_MESSAGES = pa.list_(
    pa.field("element", pa.struct([("role", pa.string()), ("content", pa.string())]))
)
_NUMBERS = pa.list_(pa.field("element", pa.int64()))
_TRUTH = pa.struct([("target", pa.int64()), ("numbers", _NUMBERS)])
TINYZERO = pa.schema(
    [
        ("target", pa.int64()),
        ("nums", _NUMBERS),
        ("data_source", pa.string()),
        ("prompt", _MESSAGES),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", _TRUTH)])),
        ("extra_info", pa.struct([("split", pa.string()), ("index", pa.int64())])),
    ]
)
"""What TinyZero's `data_preprocess/countdown.py` writes: the hub's two columns, then its own.

As Hugging Face `datasets` 5.2 writes it: looked up by running such a `map` and `to_parquet`.
"""

SOLVABLE: list[tuple[list[int], int]] = [
    ([44, 19, 35], 98),
    ([3, 5, 8], 16),
    ([2, 3, 4, 5], 14),
    ([25, 4, 9], 91),
    ([7, 1], 8),
    ([6, 10, 4], 20),
]
REVISION = "0123456789abcdef0123456789abcdef01234567"
UNSOLVABLE: tuple[list[int], int] = ([1, 1, 1], 98)


def tinyzero_row(
    numbers: list[int], target: int, index: int, template: Template = "base", split: str = "train"
) -> dict[str, Any]:
    return {
        "target": target,
        "nums": numbers,
        "data_source": "countdown",
        "prompt": render_messages(template, numbers, target),
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": {"target": target, "numbers": numbers}},
        "extra_info": {"split": split, "index": index},
    }


def write_tinyzero(file: Path, problems: list[tuple[list[int], int]]) -> Path:
    rows = [tinyzero_row(*problem, index) for index, problem in enumerate(problems)]
    pq.write_table(pa.Table.from_pylist(rows, schema=TINYZERO), file)
    return file


def verl_gsm8k_row(question: str, truth: str, **more: Any) -> dict[str, Any]:
    """A row as verl's own preparation of GSM8K writes it; `more` is its `extra_info`."""
    asked = f'{question} Let\'s think step by step and output the final answer after "####".'
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": asked}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        **more,
    }


def write_rows(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
        return file
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def put_in_cache(cache: Path, name: str, files: dict[str, list[dict[str, Any]]]) -> Path:
    """Lays files down as the hub's client does: a snapshot of links to blobs, and a ref to it."""
    folder = cache / f"datasets--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / REVISION
    for path, rows in files.items():
        made = write_rows(folder / "made" / path, rows)
        blob = folder / "blobs" / hashlib.sha256(made.read_bytes()).hexdigest()
        blob.parent.mkdir(exist_ok=True)
        made.replace(blob)
        link = snapshot / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(REVISION)
    return snapshot
