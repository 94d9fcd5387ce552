"""Opens a parquet file of unknown origin (data path stage 1): sound and small enough, or one line.

One limit, on what the rows take in memory, is checked before they are decoded. A file's metadata
tells most of it, but not that a dictionary may hold one huge text which a few bytes then repeat a
million times: so dictionaries are looked at. Not here: what the rows mean (`sql/checks`).
"""

from __future__ import annotations

import stat
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rl_core.errors import first_line
from rl_core.system.words import printable

MAX_ROWS = 20_000_000
MAX_DECODED_BYTES = 8 * 2**30
"""What the rows of one file may take in memory."""

_VALUE_BYTES = 16
"""At most, of a value that is no text; of a text its place in memory."""


class DatasetError(ValueError):
    """A data set's file is missing, truncated or not what its own metadata says."""


def read_parquet(path: Path, *, max_rows: int = MAX_ROWS) -> pa.Table:
    """Returns all rows of a file, if they are sound and fit into memory.

    Raises:
        DatasetError: one line with the path, what is wrong and what to do about it.
    """
    _refuse_no_file(path)
    try:
        with pq.ParquetFile(path) as file:
            _refuse_too_large(path, file.metadata, max_rows)
        table = pq.read_table(path)
        table.validate(full=True)  # text that is not UTF-8 would crash whoever reads it
    except PermissionError as error:
        raise DatasetError(
            f"{path} may not be read by this user: change its permissions"
        ) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = printable(first_line(error))
        raise DatasetError(
            f"{path}: not a readable parquet file, truncated or damaged ({reason}): "
            "delete the folder and run again"
        ) from error
    return table


def _refuse_no_file(path: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        if path.is_symlink():
            raise DatasetError(
                f"{path} is a link to {path.readlink()}, which is not there: delete the link"
            ) from error
        raise DatasetError(f"{path} is missing: run `countdown-train generate`") from error
    except OSError as error:
        raise DatasetError(f"{path} cannot be opened ({error.strerror}): check the path") from error
    if stat.S_ISDIR(status.st_mode):
        raise DatasetError(f"{path} is a folder, where a parquet file should be: delete it")
    if not stat.S_ISREG(status.st_mode):
        raise DatasetError(f"{path} is a pipe or a device, not a parquet file: delete it")
    if status.st_size == 0:
        raise DatasetError(
            f"{path}: not a readable parquet file, empty (0 bytes): delete the folder and run again"
        )


def _refuse_too_large(path: Path, metadata: pq.FileMetaData, max_rows: int) -> None:
    if metadata.num_rows > max_rows:
        raise DatasetError(
            f"{path} holds {metadata.num_rows:,} rows, and at most {max_rows:,} are read: "
            "this is another data set, or data.train_size and data.test_size should say so"
        )
    chunks = [
        (group, metadata.row_group(group).column(column))
        for group in range(metadata.num_row_groups)
        for column in range(metadata.num_columns)
    ]
    num_bytes = sum(c.total_uncompressed_size + c.num_values * _VALUE_BYTES for _, c in chunks)
    if num_bytes <= MAX_DECODED_BYTES:  # the dictionaries that are decoded next are part of it
        num_bytes += sum(c.num_values * _longest_repeated(path, group, c) for group, c in chunks)
    if num_bytes > MAX_DECODED_BYTES:
        raise DatasetError(
            f"{path}: {path.stat().st_size:,} bytes that would take up to "
            f"{num_bytes / 2**30:,.1f} GiB in memory, and at most "
            f"{MAX_DECODED_BYTES / 2**30:.0f} GiB are read: split the file, or delete it"
        )


def _longest_repeated(path: Path, group: int, column: pq.ColumnChunkMetaData) -> int:
    """Returns the length of the longest text that a chunk may repeat: those of its dictionary."""
    if column.physical_type != "BYTE_ARRAY" or not column.has_dictionary_page:
        return 0
    leaf = column.path_in_schema
    with pq.ParquetFile(path, read_dictionary=[leaf]) as file:
        first_row = next(file.iter_batches(batch_size=1, row_groups=[group], columns=[leaf]), None)
    values = None if first_row is None else first_row.column(0)
    while values is not None and pa.types.is_nested(values.type):
        values = values.field(0) if pa.types.is_struct(values.type) else values.values
    if values is None or not pa.types.is_dictionary(values.type) or not len(values.dictionary):
        return int(column.total_uncompressed_size)
    return int(pc.max(pc.binary_length(values.dictionary)).as_py() or 0)
