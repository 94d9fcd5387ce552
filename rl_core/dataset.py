"""Data sets on disk (data path stage 1): writes both splits, proves them whole, reads problems.

A data set is a folder with `train.parquet` and `test.parquet`. Each file's key-value metadata says
what made it and holds a hash of its rows: a folder is reused only if it is what is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rl_core.atomic import new_folder
from rl_core.config import CountdownConfig, DataConfig, Gsm8kConfig
from rl_core.envs import countdown, gsm8k
from rl_core.envs.puzzles import Puzzle, generate_puzzles
from rl_core.gsm8k_source import SPLITS, find_source, read_rows, source_digest
from rl_core.schema import COUNTDOWN_DATASET, GSM8K_DATASET
from rl_core.types import Message, Problem

GENERATOR_VERSION = 1
"""Raise it when the same settings would make other rows."""

_SETTINGS, _SEED, _VERSION, _CONTENT, _SOURCE = (
    f"countdown_train.{name}".encode()
    for name in ("generator", "seed", "version", "content_sha256", "source_sha256")
)
_NOT_GENERATOR_SETTINGS = {"answer_from", "format_score", "full_score"}
_ROW_GROUP_ROWS = 65_536


class DatasetError(ValueError):
    """A data set's file is missing, truncated or not what its own metadata says."""


def generator_settings(env: CountdownConfig | Gsm8kConfig, data: DataConfig) -> dict[str, Any]:
    """Returns everything that the rows depend on, as plain values."""
    settings = {
        "env": env.model_dump(mode="json", exclude=_NOT_GENERATOR_SETTINGS),
        "version": GENERATOR_VERSION,
    }
    if isinstance(env, CountdownConfig):
        settings |= data.model_dump(mode="json", include={"train_size", "test_size", "seed"})
    return settings


def dataset_name(env: CountdownConfig | Gsm8kConfig, data: DataConfig) -> str:
    """Returns the folder's name: `data.name`, else the env's name and a hash of what makes it."""
    settings = json.dumps(generator_settings(env, data), sort_keys=True)
    return data.name or f"{env.name}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"


def write_dataset(env: CountdownConfig | Gsm8kConfig, data: DataConfig, folder: Path) -> None:
    """Makes both splits; the folder appears whole, or not at all.

    The same settings give the same bytes on every machine with the same pyarrow.

    Args:
        env: what the problems are.
        data: how many, and the seed.
        folder: where they go; a data set that is there is replaced.

    Raises:
        ValueError: fewer problems exist than are asked for, the source of GSM8K cannot be read, or
            the folder holds something else.
    """
    others = _other_files(folder)
    if others:
        raise ValueError(
            f"{folder} holds {others[0]}, which is no data set: choose another data.name"
        )
    source: str | None = None
    if isinstance(env, CountdownConfig):
        tables = _countdown_tables(env, data)
    else:
        files = find_source(env.source)
        source = source_digest(files)
        tables = {split: _gsm8k_table(env, split, read_rows(files[split])) for split in SPLITS}
    with new_folder(folder) as temporary:
        for split, table in tables.items():
            metadata = {
                _SETTINGS: json.dumps(generator_settings(env, data), sort_keys=True).encode(),
                _SEED: str(data.seed).encode(),
                _VERSION: str(GENERATOR_VERSION).encode(),
                _CONTENT: content_hash(table).encode(),
            }
            if source:
                metadata[_SOURCE] = source.encode()
            pq.write_table(
                table.replace_schema_metadata(metadata),
                temporary / f"{split}.parquet",
                version="2.6",
                compression="zstd",
                row_group_size=_ROW_GROUP_ROWS,
            )


def is_ready(env: CountdownConfig | Gsm8kConfig, data: DataConfig, folder: Path) -> bool:
    """Says whether the folder holds the data set of these settings; not if a file is missing.

    Raises:
        ValueError: the folder was made by other settings, or from another copy of the source.
        DatasetError: a file is truncated, or its rows are not those that were written.
    """
    paths = [folder / f"{split}.parquet" for split in SPLITS]
    for path in paths:
        if path.is_file():
            _check_file(path, generator_settings(env, data))
    if not all(path.is_file() for path in paths):
        return False
    if isinstance(env, Gsm8kConfig) and Path(env.source).expanduser().is_dir():
        made_from = (pq.read_metadata(paths[0]).metadata or {}).get(_SOURCE, b"").decode()
        if made_from != source_digest(find_source(env.source)):
            raise ValueError(
                f"{folder} was made from another copy of env.source={env.source}: delete the "
                "folder or choose another data.name"
            )
    return True


def read_problems(path: Path) -> list[Problem]:
    """Returns the problems of one split, in file order.

    Files of TinyZero and verl are read too: `num_solutions` is 0 and `index` the row number where
    `extra_info` does not say.

    Raises:
        DatasetError: the file is missing, truncated, or lacks a column.
    """
    table = _read_table(path)
    columns = ["data_source", "prompt", "reward_model"]
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise DatasetError(f"{path}: no column {missing[0]!r}; it has {table.column_names}")
    extras: Sequence[dict[str, Any] | None] = [None] * table.num_rows
    if "extra_info" in table.column_names:
        extras = table["extra_info"].to_pylist()
    rows = zip(*(table[name].to_pylist() for name in columns), extras, strict=True)
    problems: list[Problem] = []
    try:
        for number, (data_source, messages, reward_model, extra) in enumerate(rows):
            index = (extra or {}).get("index")
            problems.append(
                Problem(
                    index=number if index is None else index,
                    data_source=data_source,
                    messages=tuple(Message(role=m["role"], content=m["content"]) for m in messages),
                    ground_truth=reward_model["ground_truth"],
                    num_solutions=(extra or {}).get("num_solutions") or 0,
                )
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise DatasetError(
            f"{path}: row {len(problems)} is not shaped like a problem ({error!r})"
        ) from error
    return problems


def verify_file(path: Path) -> dict[bytes, bytes]:
    """Reads one split whole, and returns its key-value metadata.

    Raises:
        DatasetError: the file is missing or damaged, or its rows are not those of its own hash.
    """
    table = _read_table(path)
    metadata: dict[bytes, bytes] = table.schema.metadata or {}
    if _CONTENT in metadata and metadata[_CONTENT].decode() != content_hash(table):
        raise DatasetError(
            f"{path}: the rows are not those that were written (changed or damaged): delete the "
            "folder and run again"
        )
    return metadata


def content_hash(table: pa.Table) -> str:
    """Returns the sha256 of a table's names, types and values, whatever its chunks."""
    digest = hashlib.sha256()
    for field, column in zip(table.schema, table.itercolumns(), strict=True):
        digest.update(f"{field.name}:{len(column)};".encode())
        _feed(
            digest,
            pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], field.type),
        )
    return digest.hexdigest()


def _check_file(path: Path, settings: dict[str, Any]) -> None:
    metadata = verify_file(path)
    if _SETTINGS not in metadata:
        raise ValueError(f"{path} does not say what made it: delete it or choose another data.name")
    made_by = json.loads(metadata[_SETTINGS])
    if made_by != settings:
        changed = sorted(_flat(settings).items() ^ _flat(made_by).items(), key=repr)
        raise ValueError(
            f"{path} was made by other settings ({changed[0][0]} differs): delete the folder or "
            "choose another data.name"
        )


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except FileNotFoundError as error:
        raise DatasetError(f"{path} is missing: run `countdown-train generate`") from error
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(
            f"{path}: not a readable parquet file, truncated or damaged ({reason}): delete the "
            "folder and run again"
        ) from error


def _countdown_tables(env: CountdownConfig, data: DataConfig) -> dict[str, pa.Table]:
    puzzles = generate_puzzles(env, size=data.train_size + data.test_size, seed=data.seed)
    return {
        "train": _countdown_table(env, "train", puzzles[data.test_size :]),
        "test": _countdown_table(env, "test", puzzles[: data.test_size]),
    }


def _countdown_table(env: CountdownConfig, split: str, puzzles: Sequence[Puzzle]) -> pa.Table:
    rows = [
        {
            "nums": puzzle.numbers,
            "target": puzzle.target,
            "data_source": countdown.DATA_SOURCE,
            "prompt": countdown.render_messages(env.prompt_template, puzzle.numbers, puzzle.target),
            "ability": "math",
            "reward_model": {
                "style": "rule",
                "ground_truth": {"target": puzzle.target, "numbers": puzzle.numbers},
            },
            "extra_info": {
                "split": split,
                "index": index,
                "num_solutions": puzzle.num_solutions,
                "solution": puzzle.solution,
            },
        }
        for index, puzzle in enumerate(puzzles)
    ]
    return pa.Table.from_pylist(rows, schema=COUNTDOWN_DATASET)


def _gsm8k_table(env: Gsm8kConfig, split: str, pairs: Sequence[tuple[str, str]]) -> pa.Table:
    rows = [
        {
            "data_source": gsm8k.DATA_SOURCE,
            "prompt": gsm8k.render_messages(env.prompt_template, question),
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": gsm8k.extract_truth(answer)},
            "extra_info": {
                "split": split,
                "index": index,
                "num_solutions": 0,
                "solution": answer,
            },
        }
        for index, (question, answer) in enumerate(pairs)
    ]
    return pa.Table.from_pylist(rows, schema=GSM8K_DATASET)


def _feed(digest: hashlib._Hash, array: pa.Array) -> None:
    """Hashes an array: validity, then lengths, then values, down to the leaves."""
    digest.update(f"{array.type.id}:".encode())  # a list's item has another name once written
    digest.update(np.packbits(array.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    if pa.types.is_struct(array.type):
        for field, child in zip(array.type, array.flatten(), strict=True):
            digest.update(f"{field.name};".encode())
            _feed(digest, child)
    elif pa.types.is_list(array.type):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        digest.update(lengths.to_numpy(zero_copy_only=False).tobytes())
        _feed(digest, array.flatten())
    elif pa.types.is_string(array.type):
        lengths = pc.fill_null(pc.binary_length(array), 0)
        digest.update(lengths.to_numpy(zero_copy_only=False).tobytes())
        digest.update("".join(pc.fill_null(array, "").to_pylist()).encode())
    else:
        digest.update(pc.fill_null(array, 0).to_numpy(zero_copy_only=False).tobytes())


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings under the names that a user types."""
    data = {
        f"data.{key}": value for key, value in settings.items() if key not in ("env", "version")
    }
    env = {f"env.{key}": value for key, value in settings["env"].items()}
    return data | env | {"generator version": settings["version"]}


def _other_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return sorted(
        {path.name for path in folder.iterdir()} - {f"{split}.parquet" for split in SPLITS}
    )
