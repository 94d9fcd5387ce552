"""A DuckDB in memory that sees what it is given and nothing else, and one SELECT in it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa

from rl_core.system.words import in_one_line
from tasks.queries.saved_questions import Value

if TYPE_CHECKING:
    import pyarrow.dataset as pads

_NOT_TEXT = re.compile("[\ud800-\udfff]")  # what Python makes of bytes that are no UTF-8
_FIRST_DAY, _LAST_DAY = (date.min - date(1970, 1, 1)).days, (date.max - date(1970, 1, 1)).days
"""Of Python, counted from 1970 on."""


@contextmanager
def connect(
    tables: Mapping[str, pa.Table | pads.Dataset],
    files: Mapping[str, tuple[Sequence[Path], pa.Schema]] | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory DuckDB that sees `tables` and nothing else: no extensions, no files but `files`.

    `files`: parquet files and their columns, by the name of the table that they make up.
    """
    # Its name cannot be foreseen, and only we can read it.
    spill = tempfile.TemporaryDirectory(prefix="countdown-train-sql-", ignore_cleanup_errors=True)
    config: dict[str, str | bool | int] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": spill.name,
    }
    with spill, duckdb.connect(":memory:", config=config) as connection:
        connection.execute("set TimeZone = 'UTC'")
        connection.execute("set enable_progress_bar = false")  # it is printed into the answer
        if files:
            connection.execute("set parquet_metadata_cache = true")
            everything = [file for some, _ in files.values() for file in some]
            connection.execute(f"set allowed_paths = {_paths(everything)}")
        connection.execute("set enable_external_access = false")
        connection.execute("set lock_configuration = true")
        for name, table in tables.items():
            register(connection, name, table)
        for name, (some, columns) in (files or {}).items():
            _register_files(connection, name, some, columns)
        yield connection


def _register_files(
    connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[Path], columns: pa.Schema
) -> None:
    source = f"read_parquet({_paths(files)}, union_by_name = true)"
    try:
        found = {row[0] for row in connection.execute(f"describe from {source}").fetchall()}
        rows = f"select * from {source}"
        if lacking := [column for column in columns.names if column not in found]:
            connection.register(f"no_{name}", columns.empty_table().select(lacking))
            rows = f"select * from no_{name} union all by name {rows}"
        connection.execute(f"create view {name} as {rows}")
    except duckdb.Error as error:
        raise ValueError(f"not a readable parquet file ({_message(error)})") from error


def register(
    connection: duckdb.DuckDBPyConnection, name: str, table: pa.Table | pads.Dataset
) -> None:
    """Lets a connection read one more table; ValueError if DuckDB lacks the type of a column."""
    try:
        connection.register(name, table)
    except duckdb.Error as error:
        raise ValueError(f"{name}: a column's type is unknown ({_message(error)})") from error


def quoted(path: Path) -> str:
    """Returns a path as it stands between single quotes."""
    return str(path).replace("'", "''")


def _paths(files: Sequence[Path]) -> str:
    return "[" + ", ".join(f"'{quoted(file.absolute())}'" for file in files) + "]"


def _message(error: duckdb.Error) -> str:
    return in_one_line(str(error).split("\n\nLINE ")[0])


def select(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Value],
    tables: Sequence[str],
) -> pl.DataFrame:
    """Returns the rows of one SELECT, else ValueError; `tables`: all there are, for messages."""
    if _NOT_TEXT.search(sql):
        raise ValueError("the SELECT holds bytes that are no UTF-8")
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
            raise ValueError(f"sql takes exactly one SELECT, and this is {kinds}: {sql.strip()}")
        relation = connection.sql(sql, params=dict(parameters) or None)
        return _with_dates_of_python(pl.DataFrame(relation.to_arrow_table()))
    except duckdb.Error as error:
        raise ValueError(f"{_message(error)} (there are: {', '.join(tables)})") from error
    except (pl.exceptions.PolarsError, pa.ArrowException) as error:
        raise ValueError(
            "a column of the answer has a type that cannot be shown, such as an interval or a "
            "union: cast it to text, COLUMN::varchar"
        ) from error


def _with_dates_of_python(frame: pl.DataFrame) -> pl.DataFrame:
    """Raises ValueError for dates outside of the years 1 to 9999, at which polars panics."""
    for column in frame.select(pl.selectors.date() | pl.selectors.datetime()):
        unit = column.dtype.time_unit if isinstance(column.dtype, pl.Datetime) else None
        per_day = 1 if unit is None else 86_400 * {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
        days = column.to_physical() // per_day
        if not days.is_between(_FIRST_DAY, _LAST_DAY).all():
            raise ValueError(
                f"column {column.name} holds a date outside of the years 1 to 9999: cast it to "
                f'text, "{column.name}"::varchar'
            )
    return frame
