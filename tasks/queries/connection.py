"""A DuckDB in memory that sees what it is given and nothing else, and one SELECT in it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa

from tasks.queries.saved_questions import Value

if TYPE_CHECKING:
    import pyarrow.dataset as pads


@contextmanager
def connect(
    tables: Mapping[str, pa.Table | pads.Dataset],
    files: Mapping[str, tuple[Sequence[Path], pa.Schema]] | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory DuckDB that sees `tables` and nothing else: no extensions, no files but `files`.

    Args:
        tables: by name.
        files: parquet files, and the columns of the table that they make up, by its name.
    """
    config: dict[str, str | bool | int] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": str(Path(tempfile.gettempdir()) / f"countdown-train-sql-{os.getpid()}"),
    }
    connection = duckdb.connect(":memory:", config=config)
    try:
        connection.execute("set TimeZone = 'UTC'")
        # It would stand in the answer, on standard output.
        connection.execute("set enable_progress_bar = false")
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
    finally:
        connection.close()


def _register_files(
    connection: duckdb.DuckDBPyConnection, name: str, files: Sequence[Path], columns: pa.Schema
) -> None:
    """Makes parquet files a table; a column that they lack is null."""
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
    """Lets a connection read one more table.

    Raises:
        ValueError: a column is of a type that DuckDB does not have.
    """
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
    return " ".join(str(error).split("\n\nLINE ")[0].split())


def select(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Value],
    tables: Sequence[str],
) -> pl.DataFrame:
    """Returns the rows of one SELECT.

    Args:
        connection: of `connect`.
        sql: one SELECT.
        parameters: values of its `$parameters`.
        tables: names of those there are, for messages.

    Raises:
        ValueError: not one SELECT, or DuckDB refuses it.
    """
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
            raise ValueError(f"sql takes exactly one SELECT, and this is {kinds}: {sql.strip()}")
        relation = connection.sql(sql, params=dict(parameters) or None)
        return pl.DataFrame(relation.to_arrow_table())
    except duckdb.Error as error:
        raise ValueError(f"{_message(error)} (there are: {', '.join(tables)})") from error
