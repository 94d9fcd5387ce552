"""Data sets on disk (data path stage 1): writes both splits, verifies them, reads problems.

A data set is a folder with `train.parquet` and `test.parquet`. Each file's metadata has the
settings that made it and a hash of its rows: a folder is reused only if the settings are the same.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rl_core.config.run import DataConfig, RunConfig
from rl_core.data.readers import (
    SPLITS,
    DatasetError,
    count_rows,
    file_digest,
    find_files,
    is_hub_name,
    read_parquet,
)
from rl_core.data.user_files import num_own_training_rows, own_settings, read_own_data, read_rows
from rl_core.envs.rows import JSON_STYLE, tables_of
from rl_core.envs.text_env import TextEnv
from rl_core.system.atomic import new_folder
from rl_core.system.versions import version_of
from rl_core.types import OWN_EXTRA_INFO, Message, Problem

GENERATOR_VERSION = 1
"""Raise it when the same settings would make other rows."""
OWN_FILES_VERSION = 2
"""The same for `data.train_files`."""

NO_PROBLEMS = (
    "env={name} has no problems but yours: data.train_files=FILE.jsonl names rows with `question` "
    "or `prompt`, and `answer`"
)

_SETTINGS, _SEED, _VERSION, _CONTENT, _SOURCE, _OWN = (
    f"countdown_train.{name}".encode()
    for name in ("generator", "seed", "version", "content_sha256", "source_sha256", "own_files")
)
_NOT_GENERATOR_SETTINGS = {
    "answer_from",
    "chat_args",
    "format_score",
    "full_score",
    "max_turns",
    "reward",
    "reward_weights",
}


def generator_settings(env: TextEnv, data: DataConfig) -> dict[str, Any]:
    """Returns everything that the rows depend on; ValueError if a user's file cannot be read."""
    if data.train_files:
        return {**own_settings(env, data), "version": OWN_FILES_VERSION}
    settings = {
        # `reward_env` was a setting of the env: without it, each data set would get another name.
        "env": env.model_dump(mode="json", exclude=_NOT_GENERATOR_SETTINGS) | {"reward_env": []},
        "version": GENERATOR_VERSION,
    }
    if env.rows.source(env) is None:
        settings |= data.model_dump(mode="json", include={"train_size", "test_size", "seed"})
        if (package := env.rows.package) is not None:
            settings["package"] = f"{package} {version_of(package)}"
    return settings


def dataset_name(env: TextEnv, data: DataConfig) -> str:
    """Returns the folder's name: `data.name`, else the env's name and a hash of the settings."""
    settings = json.dumps(generator_settings(env, data), sort_keys=True)
    return data.name or f"{env.slug}-{hashlib.sha256(settings.encode()).hexdigest()[:8]}"


def dataset_folder(config: RunConfig) -> Path:
    """Returns the folder of the data set of a run's settings, whether it exists or not."""
    return config.storage.root / "data" / dataset_name(config.env, config.data)


def write_dataset(env: TextEnv, data: DataConfig, folder: Path) -> None:
    """Makes both splits; the folder appears whole or not at all, and replaces an older one.

    The same settings give the same bytes on every machine with the same pyarrow. ValueError if the
    folder holds something else, or the problems cannot be made or read.
    """
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if others := sorted(there - {f"{split}.parquet" for split in SPLITS}):
        raise ValueError(
            f"{folder} holds {others[0]}, which is no data set: choose another data.name"
        )
    tables, facts = _tables(env, data)
    settings = generator_settings(env, data)
    with new_folder(folder) as temporary:
        for split, table in tables.items():
            metadata = {
                _SETTINGS: json.dumps(settings, sort_keys=True).encode(),
                _SEED: str(data.seed).encode(),
                _VERSION: str(settings["version"]).encode(),
                _CONTENT: content_hash(table).encode(),
                **{key: value.encode() for key, value in facts.items()},
            }
            pq.write_table(
                table.replace_schema_metadata(metadata),
                temporary / f"{split}.parquet",
                version="2.6",
                compression="zstd",
                row_group_size=65_536,
            )


def is_ready(env: TextEnv, data: DataConfig, folder: Path) -> bool:
    """Returns whether the folder holds the data set of these settings; False if a file is missing.

    ValueError if it was made by other settings; DatasetError if a file is truncated, or its rows
    are not those that were written.
    """
    paths = [folder / f"{split}.parquet" for split in SPLITS]
    for path in paths:
        if path.is_file():
            _check_file(path, generator_settings(env, data))
    return all(path.is_file() for path in paths)


def count_problems(config: RunConfig) -> int:
    """Returns the number of training problems, without using the network.

    If the data set exists, its rows are counted, else those of its sources, with duplicates.
    ValueError if a file cannot be read, or leaves no row for training.
    """
    env = config.env
    data = config.data
    if env.rows.source(env) is None and not data.train_files:
        return data.train_size
    fetched = any(is_hub_name(name) for name in (*data.train_files, *data.test_files))
    if data.name is not None or not fetched:
        name = data.name or dataset_name(env, data)
        made = config.storage.root / "data" / name / "train.parquet"
        if made.is_file():
            return count_rows(made)
    if data.train_files:
        return data.train_size if fetched else num_own_training_rows(data)
    _source_files(env, from_hub=False)
    assert env.rows.source_size is not None, f"env={env.name} reads what it does not know"
    return env.rows.source_size


def read_problems(path: Path) -> list[Problem]:
    """Returns the problems of one split in file order; DatasetError if it is missing or damaged.

    Files of TinyZero and verl are read too: if `extra_info` lacks them, `num_solutions` is 0 and
    `index` the row number.
    """
    return problems_in(read_parquet(path), path)


def problems_in(table: pa.Table, path: object) -> list[Problem]:
    """Returns the problems of a table, which errors call `path`."""
    columns = ["data_source", "prompt", "reward_model"]
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise DatasetError(f"{path}: no column {missing[0]!r}; it has {table.column_names}")
    if "extra_info" in table.column_names:
        columns.append("extra_info")
    problems: list[Problem] = []
    try:
        for number, row in enumerate(table.select(columns).to_pylist()):
            extra = row.get("extra_info") or {}
            index = extra.get("index")
            truth = row["reward_model"]["ground_truth"]
            is_json = row["reward_model"].get("style") == JSON_STYLE
            problems.append(
                Problem(
                    index=number if index is None else index,
                    data_source=row["data_source"],
                    messages=tuple(
                        Message(role=m["role"], content=m["content"]) for m in row["prompt"]
                    ),
                    ground_truth=json.loads(truth) if is_json else truth,
                    num_solutions=extra.get("num_solutions") or 0,
                    extra_info=extra.get(OWN_EXTRA_INFO) or "",
                )
            )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise DatasetError(
            f"{path}: row {len(problems)} is not shaped like a problem ({error!r})"
        ) from error
    return problems


def read_solved(path: Path) -> list[tuple[Problem, str]]:
    """Returns the (problem, solution) pairs of one file of `write_dataset`, in file order."""
    solutions = (extra["solution"] for extra in read_parquet(path)["extra_info"].to_pylist())
    return list(zip(read_problems(path), solutions, strict=True))


def difficulty_classes(env: TextEnv, file: Path) -> list[str]:
    """Returns the class of each problem of a split; problems of one class are about as hard."""
    return [
        f"{problem.data_source} {env.difficulty_of(problem.ground_truth, solution or '')}"
        for problem, solution in read_solved(file)
    ]


def read_verified(path: Path) -> pa.Table:
    """Returns the rows of one split; DatasetError if their hash is not the one that was written."""
    table = read_parquet(path)
    metadata = table.schema.metadata or {}
    if _CONTENT in metadata and metadata[_CONTENT] != content_hash(table).encode():
        raise DatasetError(
            f"{path}: the rows are not those that were written (changed or damaged): delete the "
            "folder and run again"
        )
    return table


def content_hash(table: pa.Table) -> str:
    """Returns the sha256 of a table's names, types and values, whatever its chunks."""
    digest = hashlib.sha256()
    for field, column in zip(table.schema, table.itercolumns(), strict=True):
        digest.update(f"{field.name}:{len(column)};".encode())
        _feed(digest, column)
    return digest.hexdigest()


def _check_file(path: Path, settings: dict[str, Any]) -> None:
    metadata = read_verified(path).schema.metadata or {}
    try:
        changed = sorted(
            _flat(settings).items() ^ _flat(json.loads(metadata[_SETTINGS])).items(), key=repr
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path} does not say what made it: delete it or choose another data.name"
        ) from error
    if changed:
        raise ValueError(
            f"{path} was made by other settings ({changed[0][0]} differs): delete the folder or "
            "choose another data.name"
        )


def _tables(env: TextEnv, data: DataConfig) -> tuple[dict[str, pa.Table], dict[bytes, str]]:
    if data.train_files:
        tables, facts = read_own_data(env, data)
        return tables, {_OWN: json.dumps(facts)}
    if env.rows.source(env) is None:
        if not env.makes_problems():
            raise ValueError(NO_PROBLEMS.format(name=env.name))
        return env.rows.make(
            env, **data.model_dump(include={"train_size", "test_size", "seed"})
        ), {}
    files = _source_files(env)
    rows = {split: list(read_rows(env, files[split])) for split in SPLITS}
    parts = [
        split.encode() + bytes.fromhex(file_digest(file))
        for split in sorted(files)
        for file in files[split]
    ]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    return tables_of(rows, env.rows.schema()), {_SOURCE: digest}


def _source_files(env: TextEnv, *, from_hub: bool = True) -> dict[str, list[Path]]:
    """Returns the files of `env.source` by split; ValueError if it is no name of the hub."""
    name = env.rows.source(env)
    assert name is not None, f"env={env.name} reads no rows"
    if not is_hub_name(name):
        raise ValueError(
            f"env.source={name} is no data set of the hub (OWNER/NAME): name the files of a copy, "
            "data.train_files=FILE data.test_files=FILE"
        )
    return {s: find_files("env.source", [name], s, from_hub=from_hub) for s in SPLITS}


def _feed(digest: hashlib._Hash, column: pa.ChunkedArray) -> None:
    """Hashes a column: validity, then lengths, then values, down to the leaves."""
    kind = column.type
    digest.update(f"{kind.id}:".encode())  # the id only: writing renames a list's item
    digest.update(np.packbits(column.is_valid().to_numpy()).data)
    if pa.types.is_struct(kind):
        for field, child in zip(kind, column.flatten(), strict=True):
            digest.update(f"{field.name};".encode())
            _feed(digest, child)
    elif pa.types.is_list(kind):
        digest.update(_plain(pc.list_value_length(column)))
        _feed(digest, pc.list_flatten(column))
    elif pa.types.is_string(kind):
        digest.update(_plain(pc.binary_length(column)))
        for chunk in column.chunks:
            digest.update(_text_bytes(chunk))
    else:
        digest.update(_plain(column))


def _plain(column: pa.ChunkedArray) -> memoryview:
    """Returns the bytes of a column's values, with 0 for null."""
    return np.ascontiguousarray(pc.fill_null(column, 0).to_numpy()).data


def _text_bytes(array: pa.StringArray) -> memoryview:
    """Returns the UTF-8 bytes of all texts, one after the other, nothing for null."""
    array = pc.fill_null(array, "")
    _, offsets, values = array.buffers()
    if values is None or len(array) == 0:
        return memoryview(b"")
    ends = np.frombuffer(offsets, dtype=np.int32)[[array.offset, array.offset + len(array)]]
    return memoryview(values)[ends[0] : ends[1]]


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    data = {
        f"data.{key}": value
        for key, value in settings.items()
        if key not in ("env", "version", "package")
    }
    env = {f"env.{key}": value for key, value in settings["env"].items()}
    made_by = {"the package's version": settings.get("package")}
    return data | env | made_by | {"generator version": settings["version"]}
