"""Files that a user names: finds them, here or on the Hugging Face hub, and reads them (stage 1).

Not what their rows mean (`user_files`, `env_source`): only which files, bytes and records.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from json import JSONDecodeError
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.envs.rows import Record
from rl_core.errors import first_line

_SUFFIXES = (".parquet", ".jsonl", ".json", ".jsonl.gz", ".json.gz")
_GLOB = re.compile(r"[*?\[]")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_NAME_LENGTH = 96
_ENDING = re.compile(r"\.[A-Za-z]+")
_HUB_PLACES = ("", "data/", "main/")
"""Folders of a hub data set: `main` is the config that has no other name (openai/gsm8k)."""
_SHARD = re.compile(r"-of-(\d+)\.")
_BATCH_ROWS = 16_384


def find_files(
    setting: str, names: Sequence[str], split: str, *, from_hub: bool = True
) -> list[Path]:
    """Returns the files that a setting names, in its order; those of a glob by name.

    Args:
        setting: its key, for messages.
        names: paths or globs of parquet or JSON lines (also with .gz), or data sets of the hub as
            OWNER/NAME, which are fetched unless they are in the local cache.
        split: `train` or `test`: which files of a hub data set.
        from_hub: False leaves hub data sets out, to look at what needs no network.

    Raises:
        ValueError: a name stands for nothing, a folder, or a file of another kind.
    """
    found: list[Path] = []
    for name in names:
        given = f"{setting}={name}"
        if not is_hub_name(name):
            found += _local_files(given, name)
        elif from_hub:
            found += hub_files(given, name, split, _HUB_PLACES)
    return found


def is_hub_name(name: str) -> bool:
    """Says whether a name is OWNER/NAME: no path that is there, nor one with a file's ending."""
    path = Path(name)
    if len(name) > _HUB_NAME_LENGTH or not _HUB_NAME.fullmatch(name):
        return False
    return not (path.exists() or path.parent.is_dir() or _ENDING.fullmatch(path.suffix))


def digest_of(files: Sequence[Path]) -> str:
    """Returns a hash of the files' bytes, in order: a changed, added or missing file changes it."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(file_digest(file).encode())
    return digest.hexdigest()


def file_digest(file: Path) -> str:
    """Returns the sha256 of a file's bytes; read once while its size and time stay the same.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        state = file.stat()
        return _file_digest(file.resolve(), state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise ValueError(f"{file}: not readable ({error.strerror})") from error


@cache
def _file_digest(file: Path, _size: int, _changed_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_records(file: Path, columns: Sequence[str]) -> Iterator[tuple[int, Record]]:
    """Yields (row, record) in file order; the row of JSON lines is the line, both count from 1.

    Args:
        file: parquet, JSON lines, or JSON that is one list.
        columns: top-level columns that are wanted; those that a parquet file lacks are absent.

    Raises:
        ValueError: the file cannot be read; the message names file and line.
    """
    reader = _parquet_records if file.suffix == ".parquet" else _json_records
    try:
        yield from reader(file, columns)
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{file}: not readable, truncated or damaged ({first_line(error)}): give a whole file"
        ) from error


def count_rows(file: Path) -> int:
    """Returns how many records a file holds, without reading what is in them.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        if file.suffix == ".parquet":
            return int(pq.read_metadata(file).num_rows)
        if (rows := _rows_of_a_list(file)) is not None:
            return len(rows)
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
            return sum(1 for line in lines if line.strip())
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise ValueError(
            f"{file}: not readable, truncated or damaged: give a whole file"
        ) from error


def _parquet_records(file: Path, columns: Sequence[str]) -> Iterator[tuple[int, Record]]:
    row = 0
    with pq.ParquetFile(file) as parquet:
        names = parquet.schema_arrow.names
        wanted = [name for name in columns if name in names]
        if not wanted:
            raise ValueError(f"{file}: has none of the columns {list(columns)}, only {names}")
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=wanted):
            for record in batch.to_pylist():
                row += 1
                yield row, record


def _rows_of_a_list(file: Path) -> list[Record] | None:
    """Returns the rows of a `.json` file that is one list, as most programs write it; else None.

    Raises:
        ValueError: it begins as a list and is none, or holds something else than objects.
    """
    if not file.name.endswith((".json", ".json.gz")):
        return None
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        start = next((part for part in iter(lambda: stream.read(64), b"") if part.strip()), b"")
        if not start.lstrip().startswith(b"["):
            return None
        stream.seek(0)
        try:
            rows = json.loads(stream.read())
        except (ValueError, RecursionError) as error:
            where = f" at line {error.lineno}" if isinstance(error, JSONDecodeError) else ""
            raise ValueError(
                f"{file}: the list in it is not JSON ({getattr(error, 'msg', error)}{where}): "
                "write one list of objects, or one object per line"
            ) from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ValueError(
                f"{file}: row {number} is a {type(row).__name__}, every row must be a JSON object"
            )
    return list(rows)


def _json_records(file: Path, _: Sequence[str]) -> Iterator[tuple[int, Record]]:
    if (rows := _rows_of_a_list(file)) is not None:
        yield from enumerate(rows, start=1)
        return
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line.rstrip())
                if b"\\u" in line:  # half of a surrogate pair is no text
                    json.dumps(record, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                where = f" at column {error.colno}" if isinstance(error, JSONDecodeError) else ""
                raise ValueError(
                    f"{file}: line {number} is not JSON ({getattr(error, 'msg', error)}{where}): "
                    "write one object per line"
                ) from None
            if not isinstance(record, dict):
                raise ValueError(
                    f"{file}: line {number} is a {type(record).__name__}, every line must be a "
                    "JSON object"
                )
            yield number, record


def _local_files(given: str, name: str) -> list[Path]:
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            raise ValueError(f"{given} is a folder: name its files, such as {path}/*.parquet")
        if path.is_file():
            found = [path]
        elif _GLOB.search(name):
            pattern = path.relative_to(path.anchor)
            found = sorted(file for file in Path(path.anchor).glob(str(pattern)) if file.is_file())
        else:
            raise ValueError(
                f"{given}: there is no such file; a relative path starts at {Path.cwd()}"
            )
    except OSError as error:
        raise ValueError(f"{given}: not readable ({error.strerror})") from error
    if not found:
        raise ValueError(f"{given}: no file matches; a relative path starts at {Path.cwd()}")
    for file in found:
        if not file.name.endswith(_SUFFIXES):
            raise ValueError(
                f"{given}: {file.name} is of a kind that is not read: give parquet or JSON lines "
                f"({', '.join(_SUFFIXES)})"
            )
    return found


def hub_files(given: str, name: str, split: str, places: Sequence[str]) -> list[Path]:
    """Returns the files of one split: parquet shards, one parquet file, or JSON lines.

    Args:
        given: `setting=value`, for messages.
        name: OWNER/NAME.
        split: `train` or `test`.
        places: folders of the data set, each empty or with a slash at its end, the likeliest first.

    Raises:
        ValueError: neither cache nor hub have all of it.
    """
    endings = ("-*.parquet", ".parquet", ".jsonl")
    patterns = [f"{place}{split}{end}" for place in places for end in endings]
    folder = _hub_folder(given, name, patterns)
    groups = (sorted(folder.glob(pattern)) for pattern in patterns)
    return next(files for files in groups if files)


def _hub_folder(given: str, name: str, patterns: Sequence[str]) -> Path:
    """Returns the local copy of a hub data set; the network is asked only if the cache lacks it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    refused = ""
    for cached_only in (True, False):
        try:
            folder = Path(
                snapshot_download(
                    name,
                    repo_type="dataset",
                    allow_patterns=list(patterns),
                    local_files_only=cached_only,
                )
            )
        except (OSError, ValueError, HfHubHTTPError) as error:
            reason = type(error).__name__  # the error's own text may run over many lines
            refused = f"is no file or folder here, and the hub did not give it ({reason})"
            continue
        if _is_whole([file for pattern in patterns for file in folder.glob(pattern)]):
            return folder
        refused = f"has not all files of the split in {folder}, which is all that the hub gave"
    raise ValueError(f"{given} {refused}: check the name, or download it and give its files")


def _is_whole(files: Sequence[Path]) -> bool:
    """Whether a cached copy has all it says it has: `-of-00002` promises two such files."""
    shards = Counter(
        (file.parent, file.name.partition("-")[0], int(match[1]))
        for file in files
        if (match := _SHARD.search(file.name))
    )
    return bool(files) and all(found == promised for (*_, promised), found in shards.items())
