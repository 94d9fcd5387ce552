"""Files that hold problems: finds them, here or on the Hugging Face hub, and reads them (stage 1).

Only files, bytes and records; not what their rows mean (`user_files`, `envs`, `sql/checks`).
"""

import hashlib
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from io import BufferedReader
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.envs.rows import Record
from rl_core.errors import first_line
from rl_core.system.plain_files import open_plain
from rl_core.system.plain_parquet import open_parquet
from rl_core.system.words import as_path

SPLITS = ("train", "test")
_SUFFIXES = (".parquet", ".jsonl", ".json")
_HUB_PLACES = ("", "data/", "main/")
"""Folders of a hub data set, likeliest first: `main` is a config without a name (GSM8K's)."""
_BATCH_ROWS = 16_384
_ENCODINGS = {  # the longer marks first: UTF-32's begins with UTF-16's
    "UTF-32": (BOM_UTF32_LE, BOM_UTF32_BE),
    "UTF-16": (BOM_UTF16_LE, BOM_UTF16_BE),
    "UTF-32LE": (b"{\0\0\0", b"[\0\0\0"),
    "UTF-32BE": (b"\0\0\0{", b"\0\0\0["),
    "UTF-16LE": (b"{\0", b"[\0"),
    "UTF-16BE": (b"\0{", b"\0["),
}
"""How a JSON file of another encoding than UTF-8 begins."""


class DatasetError(ValueError):
    """A data set's file is missing, truncated or not what its own metadata says."""


def find_files(
    setting: str, names: Sequence[str], split: str, *, from_hub: bool = True
) -> list[Path]:
    """Returns the files that a setting names, in its order; files of a glob by name.

    `names` are paths or globs of parquet or JSON lines, or hub data sets as OWNER/NAME: their files
    of `split` are fetched if the local cache lacks them, and left out without `from_hub`.
    ValueError for any other name.
    """
    files: list[Path] = []
    for name in names:
        if not is_hub_name(name):
            files += _local_files(f"{setting}={name}", name)
        elif from_hub:
            files += _hub_files(f"{setting}={name}", name, split)
    return files


def is_hub_name(name: str) -> bool:
    """Returns whether a name is OWNER/NAME: no existing path, and no name with a file's ending."""
    path = Path(name)
    if len(name) > 96 or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name):
        return False
    return not (path.exists() or path.parent.is_dir() or re.fullmatch(r"\.[A-Za-z]+", path.suffix))


def digest_of(files: Sequence[Path]) -> str:
    """Returns a hash of the files' bytes, in order: a changed, added or missing file changes it."""
    return hashlib.sha256("".join(map(file_digest, files)).encode()).hexdigest()


def file_digest(file: Path) -> str:
    """Returns the sha256 of a file's bytes; read once while its size and time stay the same."""
    try:
        state = file.stat()
        return _file_digest(file.resolve(), state.st_size, state.st_mtime_ns)
    except OSError as error:
        raise ValueError(f"{file}: not readable ({error.strerror})") from error


@cache
def _file_digest(file: Path, _size: int, _changed_ns: int) -> str:
    with open_plain(file) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_records(file: Path, columns: Sequence[str]) -> Iterator[tuple[int, Record]]:
    """Yields (row, record) in file order, from row 1; for JSON lines, rows are line numbers.

    Of a parquet file only `columns` are read. ValueError names what cannot be read.
    """
    with _refusing_damage(file):
        if file.suffix == ".parquet":
            yield from enumerate(_parquet_records(file, columns), start=1)
        else:
            yield from _json_records(file)


def read_parquet(path: Path) -> pa.Table:
    """Returns all rows of a data set's file; DatasetError says in one line why it cannot."""
    try:
        with open_parquet(path, follow=True) as file:
            table = file.read()
            table.validate(full=True)  # text that is not UTF-8 would crash a later reader
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing: run `countdown-train generate`") from None
    except ValueError as error:
        raise DatasetError(f"{error}: delete the folder and run again") from error
    return table


def media_columns(file: Path) -> list[str]:
    """Returns the columns of a file that hold pictures, videos or sound, by their names."""
    with _refusing_damage(file):
        if file.suffix == ".parquet":
            names: Iterable[str] = pq.read_schema(file).names
        else:
            names = next(_json_records(file))[1]
    return [
        name
        for name in names
        if re.fullmatch(r"(image|video|audio|picture)s?(_\w+)?", name, re.IGNORECASE)
    ]


def count_rows(file: Path) -> int:
    """Returns how many records a file holds, without reading what is in them."""
    with _refusing_damage(file), open_plain(file, follow=True) as stream:
        if file.suffix == ".parquet":
            return int(pq.read_metadata(stream).num_rows)
        _refuse_other_encoding(file, stream)
        if _is_list(file, stream):
            return len(_parsed(stream.read(), f"{file}: the list in it"))
        return sum(1 for line in stream if line.strip())


@contextmanager
def _refusing_damage(file: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        raise ValueError(
            f"{file}: not readable, truncated or damaged ({first_line(error)}): give a whole file"
        ) from error


def _parquet_records(file: Path, columns: Sequence[str]) -> Iterator[Record]:
    with open_parquet(file, follow=True) as parquet:
        names = parquet.schema_arrow.names
        present = [name for name in columns if name in names]
        if not present:
            raise ValueError(f"{file}: has none of the columns {list(columns)}, only {names}")
        for batch in parquet.iter_batches(_BATCH_ROWS, columns=present):
            yield from batch.to_pylist()


def _refuse_other_encoding(file: Path, stream: BufferedReader) -> None:
    start = stream.peek(4)
    for encoding, marks in _ENCODINGS.items():
        if start.startswith(marks):
            anew = f"iconv -f {encoding} -t UTF-8 {file.name} > utf8-{file.name} converts it"
            raise ValueError(f"{file} is {encoding}, and UTF-8 is read: {anew}")


def _is_list(file: Path, stream: BufferedReader) -> bool:
    return file.suffix == ".json" and stream.peek(1).lstrip(BOM_UTF8 + b" \t\r\n")[:1] == b"["


def _json_records(file: Path) -> Iterator[tuple[int, Record]]:
    with open_plain(file, follow=True) as stream:
        _refuse_other_encoding(file, stream)
        if _is_list(file, stream):
            unit = "row"
            records: Iterable[tuple[int, Any]] = enumerate(
                _parsed(stream.read(), f"{file}: the list in it"), start=1
            )
        else:
            unit = "line"
            lines = ((n, line) for n, line in enumerate(stream, start=1) if line.strip())
            records = ((n, _parsed(line.rstrip(), f"{file}: line {n}")) for n, line in lines)
        for number, record in records:
            if not isinstance(record, dict):
                raise ValueError(
                    f"{file}: {unit} {number} is a {type(record).__name__}, every {unit} must be "
                    "a JSON object"
                )
            yield number, record


def _parsed(text: bytes, what: str) -> Any:
    try:
        value = json.loads(text)
        if b"\\u" in text:  # half of a surrogate pair is not text
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        remedy = "if it is Latin-1, iconv -f LATIN1 -t UTF-8 FILE > NEW converts it"
        raise ValueError(f"{what} is not UTF-8: {remedy}") from None
    except (ValueError, RecursionError) as error:
        where = ""
        if isinstance(error, JSONDecodeError):
            where = f" at line {error.lineno}" if b"\n" in text else f" at column {error.colno}"
        raise ValueError(
            f"{what} is not JSON ({getattr(error, 'msg', error)}{where}): write one object per "
            "line, or in a .json file one list of them"
        ) from None
    return value


def _local_files(given: str, name: str) -> list[Path]:
    path = as_path(name)
    try:
        if path.is_dir():
            raise ValueError(f"{given} is a folder: name its files, such as {path}/*.parquet")
        pattern = str(path.relative_to(path.anchor))
        matches = [path] if path.exists() else sorted(Path(path.anchor).glob(pattern))
        files = [file for file in matches if file.is_file()]
    except OSError as error:
        raise ValueError(f"{given}: not readable ({error.strerror})") from error
    if matches and not files:
        raise ValueError(f"{given} is no plain file: write its rows into one")
    if not files:
        raise ValueError(f"{given}: there is no such file; a relative path starts at {Path.cwd()}")
    for file in files:
        if file.suffix not in _SUFFIXES:
            raise ValueError(
                f"{given}: {file.name} is of a kind that is not read: give parquet or JSON lines "
                f"({', '.join(_SUFFIXES)})"
            )
    return files


def is_fetched(name: str, split: str) -> bool:
    """Returns whether `find_files` would ask the hub: for a data set that is not in its cache."""
    try:
        return is_hub_name(name) and not _hub_snapshot(name, split, local_files_only=True)[1]
    except (OSError, ValueError):
        return True


def _hub_files(given: str, name: str, split: str) -> list[Path]:
    """Returns the files of one split: parquet shards, one parquet file, or JSON lines."""
    from huggingface_hub.errors import HfHubHTTPError

    refused = ""
    for local_files_only in (True, False):
        try:
            folder, files = _hub_snapshot(name, split, local_files_only=local_files_only)
        except (OSError, ValueError, HfHubHTTPError) as error:
            reason = type(error).__name__  # the error's own text may run over many lines
            refused = f"is no file or folder here, and the hub did not give it ({reason})"
            continue
        if files:
            return files
        refused = f"lacks files of the split in {folder}, and the hub gave no others"
    raise ValueError(f"{given} {refused}: check the name, or download it and give its files")


def _hub_snapshot(name: str, split: str, *, local_files_only: bool) -> tuple[str, list[Path]]:
    """Returns the folder of a hub data set, and the files of a split: none if some are missing."""
    from huggingface_hub import snapshot_download

    endings = ("-*.parquet", ".parquet", ".jsonl")
    patterns = [f"{place}{split}{end}" for place in _HUB_PLACES for end in endings]
    folder = snapshot_download(
        name, repo_type="dataset", allow_patterns=patterns, local_files_only=local_files_only
    )
    groups = [sorted(Path(folder).glob(pattern)) for pattern in patterns]
    is_whole = _is_whole([file for group in groups for file in group])
    return folder, next(filter(None, groups)) if is_whole else []


def _is_whole(files: Sequence[Path]) -> bool:
    """Returns whether a cached copy has all files: `-of-00002` means that there are two."""
    shards = Counter(
        (file.parent, file.name.partition("-")[0], int(match[1]))
        for file in files
        if (match := re.search(r"-of-(\d+)\.", file.name))
    )
    return bool(files) and all(count == promised for (*_, promised), count in shards.items())
