"""Looks into parquet files of any origin: first rows, columns, how long their texts are."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.data.readers import count_rows
from rl_core.errors import first_line
from rl_core.system.plain_files import open_plain
from rl_core.system.plain_parquet import refuse_large
from rl_core.system.words import did_you_mean, disk_size, printable

CountTokens: TypeAlias = Callable[[Sequence[Any]], Sequence[int]]
"""Tokens of each text of a batch; a text is a string, or a conversation (role, content)."""

_MOST_TOKENIZED: Final = 20_000  # rows of a file, evenly spread, whose texts are tokenized
_DAMAGE: Final = (
    pa.ArrowException,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
    OSError,
    UnicodeDecodeError,
)
_TEXTS: Final = ("prompt", "question", "response", "text")  # looked for first


def first_rows(file: Path, count: int) -> pl.DataFrame:
    """Returns the first `count` rows of a parquet file; ValueError if it cannot be read."""
    return _read(file, n_rows=count)


def columns(file: Path) -> pl.DataFrame:
    """Returns one row per column: name, Arrow's type, number of nulls."""
    schema = _schema(file)
    nulls = _read(file).null_count()
    return pl.DataFrame(
        {
            "column": schema.names,
            # list<struct<role: string, content: string>>, without parquet's words for items
            "type": [re.sub("(element|item): ", "", str(field.type)) for field in schema],
            "nulls": [nulls[name][0] for name in schema.names],
        }
    )


def describe_file(file: Path) -> str:
    """Returns how much a file holds, in one line."""
    return f"{file}: {count_rows(file):,} rows, {disk_size(file.stat().st_size)}"


def text_lengths(
    file: Path, column: str | None, count_tokens: CountTokens | None
) -> list[dict[str, Any]]:
    """Returns the lengths of a column's texts (strings or conversations), a row per unit.

    The default column is the first there of prompt, question, response and text, or else the first
    with texts. ValueError if there is none.
    """
    rows = _read(file, columns=[_text_column(file, column)]).to_series().drop_nulls()
    if rows.is_empty():
        raise ValueError(f"{file}: no row has a {rows.name}")
    if rows.dtype == pl.String:
        characters = rows.str.len_chars()
    else:
        contents = pl.element().struct.field("content").str.len_chars()
        characters = pl.select(rows.list.eval(contents).list.sum()).to_series()
    units = {"characters": characters}
    if count_tokens is not None:
        num = min(len(rows), _MOST_TOKENIZED)
        chosen = np.unique(np.linspace(0, len(rows) - 1, num).astype(int))
        units["tokens"] = pl.Series(count_tokens(rows.gather(chosen).to_list()), dtype=pl.Int64)
    return [
        {
            "unit": unit,
            "rows": len(lengths),
            "min": int(lengths.min()),
            "mean": round(float(lengths.mean()), 1),
            **{f"p{p}": int(np.quantile(lengths, p / 100, method="nearest")) for p in (50, 90, 99)},
            "max": int(lengths.max()),
        }
        for unit, lengths in ((name, series.to_numpy()) for name, series in units.items())
    ]


def _text_column(file: Path, column: str | None) -> str:
    schema = _schema(file)
    texts = [field.name for field in schema if _is_text(field.type)]
    if column is not None:
        if column in texts:
            return column
        if column in schema.names:
            raise ValueError(
                f"{file}: column {column!r} holds {schema.field(column).type}, no text"
            )
        raise ValueError(
            f"{file}: no column {column!r}{did_you_mean(column, texts)} "
            f"(of texts: {', '.join(texts)})"
        )
    if not texts:
        raise ValueError(f"{file}: no column holds texts, it has {', '.join(schema.names)}")
    return next((name for name in _TEXTS if name in texts), texts[0])


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return bool(pa.types.is_struct(kind.value_type) and "content" in kind.value_type.names)
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _schema(file: Path) -> pa.Schema:
    with _readable(file) as content:
        return pq.read_schema(content)


def _read(
    file: Path, *, columns: list[str] | None = None, n_rows: int | None = None
) -> pl.DataFrame:
    """Returns rows by way of Arrow: at a damaged file the reader of polars panics."""
    with _readable(file) as content:
        rows = pq.ParquetFile(content)
        if n_rows is None:
            refuse_large(file, content, rows)
            table = rows.read(columns)
        else:
            table = pa.Table.from_batches(islice(rows.iter_batches(n_rows), 1), rows.schema_arrow)
        table.validate(full=True)  # text that is not UTF-8
        return pl.DataFrame(table)


@contextmanager
def _readable(file: Path) -> Iterator[BufferedReader]:
    try:
        with open_plain(file, follow=True) as content:
            yield content
    except FileNotFoundError as error:
        raise ValueError(f"{file}: there is no such file") from error
    except _DAMAGE as error:
        reason = printable(first_line(error))
        raise ValueError(f"{file}: not a readable parquet file ({reason})") from error
