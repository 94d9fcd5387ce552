"""PARQUET that another may have written: opened as a plain file, and only if its rows fit.

A file of 1 kB can hold one long text 16,000 times, or a number a billion times: what it decodes to
is bounded by its metadata, and where that bound is too wide, added up without being decoded.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rl_core.errors import first_line
from rl_core.system.plain_files import open_plain
from rl_core.system.words import cut, in_one_line, printable

MAX_DECODED_BYTES: Final = 8 * 2**30
"""The most that the rows of a file may take in memory."""
_BYTES_OF: Final = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_AS_LONG_AS_STORED: Final = {"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
"""Encodings that store each text whole: no text is longer than what is stored."""
_BY_DIFFERENCE: Final = "DELTA_BYTE_ARRAY"
"""An encoding that stores the beginning of a text by reference to the text before."""
_BATCH_ROWS: Final = 65_536
_BATCH_BYTES: Final = 2**28
_FITTING: Final[set[tuple[int, ...]]] = set()
"""Files that were found to fit: adding up 327,680 different prompts takes two seconds."""


@contextmanager
def open_parquet(
    path: Path, *, below: Path | None = None, follow: bool = False
) -> Iterator[pq.ParquetFile]:
    """Yields a parquet file that `open_plain` opens; FileNotFoundError if there is none.

    ValueError, of one line, if it is no readable parquet, also for what is read in the block, or if
    its rows would take more than `MAX_DECODED_BYTES`.
    """
    try:
        with open_plain(path, below=below, follow=follow) as stream, pq.ParquetFile(stream) as file:
            refuse_large(path, stream, file)
            yield file
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, UnicodeDecodeError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise ValueError(
            printable(f"{path}: not a readable parquet file, truncated or damaged ({reason})")
        ) from error


def read_table(
    path: Path, schema: pa.Schema, *, below: Path | None = None, columns: Sequence[str] = ()
) -> pa.Table:
    """Returns the rows of a file, of a `schema` or some of its `columns`; those it lacks are null.

    See `open_parquet`; ValueError also if a column is of another type.
    """
    names = list(columns or schema.names)
    with open_parquet(path, below=below) as file:
        check_columns(path, file, schema)
        table = file.read([name for name in names if name in file.schema_arrow.names])
    for name in set(names).difference(table.column_names):
        table = table.append_column(name, pa.nulls(len(table), schema.field(name).type))
    return table.select(names)


def check_columns(path: Path, file: pq.ParquetFile, schema: pa.Schema) -> None:
    """Raises ValueError if an open file has a column of another type than a `schema`, or twice."""
    arrow = file.schema_arrow
    types = dict(zip(arrow.names, arrow.types, strict=True))
    for field in schema:
        kind = types.get(field.name, field.type)
        if _plain(kind) != _plain(field.type):
            reason = f"column {field.name} is {cut(in_one_line(kind), 80)} and not {field.type}"
            raise ValueError(printable(f"{path}: {reason}"))
    if len(types) < len(arrow.names):
        raise ValueError(printable(f"{path}: two columns have one name"))


def _plain(kind: pa.DataType) -> str:
    """Returns a type's name, the same for what other programs write: polars' large strings."""
    return re.sub("large_|(?:element|item): | not null", "", str(kind))


def refuse_large(path: Path, stream: BinaryIO, file: pq.ParquetFile) -> None:
    """Raises ValueError if the rows of an open file would take more than `MAX_DECODED_BYTES`."""
    info = os.fstat(stream.fileno())
    identity = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)
    if identity in _FITTING:
        return
    texts: dict[str, int] = {}  # columns, and how many rows to decode at a time (0: by number)
    fixed = 0
    loose = 0
    every = range(file.metadata.num_columns)
    for number in range(file.num_row_groups):
        # Reads no row, and raises an error for damage at which `column` below ends the process.
        next(file.reader.iter_batches(0, [number], every, use_threads=False), None)
        group = file.metadata.row_group(number)
        for index in range(group.num_columns):
            column = group.column(index)
            leaf = file.schema.column(index)
            if column.physical_type != leaf.physical_type:  # at which a filter ends the process
                raise pa.ArrowInvalid(f"{leaf.path} is stored as {column.physical_type}")
            name = column.path_in_schema
            stored = column.total_uncompressed_size
            width = _BYTES_OF.get(column.physical_type) or leaf.length
            fixed += column.num_values * width or stored
            if not width and _BY_DIFFERENCE in column.encodings:
                texts[name] = max(1, _BATCH_BYTES // (stored + 1))
            elif not width and not set(column.encodings) <= _AS_LONG_AS_STORED:
                texts.setdefault(name, 0)
            else:
                continue
            loose += column.num_values * stored
    num_bytes = fixed
    if fixed <= MAX_DECODED_BYTES < fixed + loose:
        num_bytes += _bytes_of_texts(stream, file, texts)
    if num_bytes > MAX_DECODED_BYTES:
        raise ValueError(
            printable(
                f"{path}: {info.st_size:,} bytes that would take more than "
                f"{MAX_DECODED_BYTES / 2**30:.0f} GiB in memory: split the file, or delete it"
            )
        )
    _FITTING.add(identity)


def _bytes_of_texts(stream: BinaryIO, file: pq.ParquetFile, texts: Mapping[str, int]) -> int:
    """Returns the bytes of text columns, or of as many rows as exceed the limit.

    They are read as dictionaries: each text once, and its number for each of its places.
    """
    num_bytes = 0
    for name, rows in texts.items():
        column = pq.ParquetFile(
            stream, metadata=file.metadata, read_dictionary=[] if rows else [name]
        )
        for batch in column.iter_batches(rows or _BATCH_ROWS, columns=[name]):
            num_bytes += sum(map(_decoded_bytes, batch.columns))
            if num_bytes > MAX_DECODED_BYTES:
                return num_bytes
    return num_bytes


def _decoded_bytes(array: pa.Array) -> int:
    if pa.types.is_dictionary(array.type):
        return int(pc.sum(pc.binary_length(array.dictionary).take(array.indices)).as_py() or 0)
    if pa.types.is_struct(array.type):
        return sum(map(_decoded_bytes, array.flatten()))
    return _decoded_bytes(array.flatten()) if pa.types.is_nested(array.type) else int(array.nbytes)
