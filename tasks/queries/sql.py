"""Asks a run's files questions in SQL: saved queries, ad-hoc SELECTs and data checks.

pyarrow reads the files, and DuckDB may open none: no SELECT can then read or write anything else
(DuckDB 2 lets a CTE hold a COPY).
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import polars as pl
import pyarrow as pa
from duckdb import DuckDBPyConnection

from rl_core import schema
from rl_core.evaluation.statistics import sign_flip_p
from rl_core.system.words import did_you_mean, in_one_line
from tasks.queries import run_tables as run_files
from tasks.queries.saved_questions import SQL_FOLDER, Query, Value, load_query

if TYPE_CHECKING:
    import pyarrow.dataset as pads

VIEWS = (
    "rollouts",
    "turns",
    "rescores",
    "metrics",
    "all_evaluations",
    "evaluations",
    "problem_accuracy",
    "held_out",
    "checkpoints",
    "settings",
    "runs",
    "datasets",
)
"""In order: each selects only from earlier ones."""
_RECORDS = {
    "setting_rows": ("settings", run_files.setting_rows),
    "metric_lines": ("metrics", run_files.metric_lines),
    "checkpoint_records": ("checkpoints", run_files.checkpoint_records),
    "run_records": ("runs", run_files.run_records),
}
"""Small tables from text files: the view that needs each, and the function that reads it."""
_FILES: Mapping[str, tuple[str, str, pa.Schema]] = {
    "rollout_rows": ("rollouts", "rollouts/step*.parquet", schema.ROLLOUTS),
    "evaluation_rows": ("all_evaluations", "eval/[!.]*.parquet", schema.EVALUATION),
    "other_evaluation_rows": ("all_evaluations", "eval/*/[!.]*.parquet", schema.EVALUATION),
    "held_out_rows": ("held_out", "held_out/[!.]*.parquet", schema.EVALUATION),
    "rescore_rows": ("rescores", "rescored/[!.]*.parquet", schema.RESCORES),
}
"""Tables from many files: the view that needs each, its files in a run's folder, its columns."""
_VALUES: Mapping[str, tuple[str, str]] = {
    "verdict": ("rollouts", "verdict"),
    "metric": ("metrics", "metric"),
    "settings": ("rescores", "changed"),
}
"""Parameters of saved questions whose value must be in a column: its view and its name."""

_SETTINGS = """
set TimeZone = 'UTC';
set enable_progress_bar = false;  -- it would be printed into the answer
set enable_external_access = false;
set lock_configuration = true;
"""
Runs = str | Sequence[str] | None
_OF_THE_USER = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)
"""Errors of a SELECT, and not of the files."""
_NOT_TEXT = re.compile("[\ud800-\udfff]")  # what Python makes of bytes that are no UTF-8
_DAYS = [(day - date(1970, 1, 1)).days for day in (date.min, date.max)]
"""Python's first and last date, in days from 1970."""


def ask(
    name: str, arguments: Mapping[str, Value] | None = None, *, root: Path, run: Runs = None
) -> pl.DataFrame:
    """Returns the answer of a saved query, of some runs (ids, or `latest`) or of all."""
    query = load_query(name)
    return run_query(query.sql, query.bind(arguments or {}), root=root, run=run)


def values_there(
    name: str, arguments: Mapping[str, Value], *, root: Path, run: str | None = None
) -> str | None:
    """Returns a message with the existing values if no row has that of an argument; else None."""
    defaults = {parameter.name: parameter.default for parameter in load_query(name).parameters}
    for parameter in filter(arguments.__contains__, _VALUES):
        view, column = _VALUES[parameter]
        value = str(arguments[parameter])
        select = f"select {column} from {view} group by {column} order by count(*) desc, {column}"
        there = list(map(str, run_query(select, root=root, run=run)[column].drop_nulls()))
        if there and value not in {*there, str(defaults[parameter])}:
            known = f"there are: {', '.join(there)}"
            hint = did_you_mean(value, there)
            return f"{parameter}={value}: no row of {view} has it{hint} ({known})"
    return None


def run_query(
    sql: str, parameters: Mapping[str, Value] | None = None, *, root: Path, run: Runs = None
) -> pl.DataFrame:
    """Returns the rows of one read-only SELECT over the views in `sql/views`; runs may write.

    `run` is as for `ask`. If a run's files are damaged so that the SELECT fails, it is left out
    with a warning. ValueError, in one or two lines, if it is not one SELECT or DuckDB refuses it.
    """
    named = [run] if run is None or isinstance(run, str) else run
    runs = [folder for name in named for folder in run_files.find_runs(root, name)]
    answer = partial(_answer_of, sql, parameters or {}, root=root)
    try:
        return answer(runs)
    except ValueError as error:
        if len(runs) < 2 or isinstance(error.__cause__, _OF_THE_USER):
            raise
        reasons = {folder: why for folder in runs if (why := _why_not(answer, folder))}
        if len(reasons) == len(runs):
            raise
    for folder, why in reasons.items():
        run_files.warn_once(f"run {folder.name} is left out: {why}")
    return answer([folder for folder in runs if folder not in reasons])


def _why_not(answer: Callable[[Sequence[Path]], object], run: Path) -> str | None:
    """Returns why a question cannot be answered of one run."""
    try:
        answer([run])
    except ValueError as error:
        return in_one_line(error)
    return None


def _answer_of(
    sql: str, parameters: Mapping[str, Value], runs: Sequence[Path], *, root: Path
) -> pl.DataFrame:
    needed = _named_views(sql)
    for view in reversed(VIEWS):
        if view in needed:
            needed |= _named_views(_select_of(view))
    of = {view: runs if view in needed else [] for view in VIEWS}
    with run_files.reading_rollouts(of["rollouts"]) as rollouts:
        files = {
            name: [file for run in of[view] for file in sorted(run.glob(pattern))]
            for name, (view, pattern, _) in _FILES.items()
        } | {"rollout_rows": rollouts}
        tables: dict[str, pa.Table | pads.Dataset] = {
            name: _dataset(run_files.sound_files(runs, files[name], columns), columns)
            for name, (_, _, columns) in _FILES.items()
        }
        tables |= {name: read(of[view]) for name, (view, read) in _RECORDS.items()}
        tables["dataset_records"] = run_files.dataset_records(root)
        with connect(tables) as connection:
            for view in filter(needed.__contains__, VIEWS):
                connection.execute(f"create view {view} as {_select_of(view)}")
            return _select(connection, sql, parameters, VIEWS)


def _named_views(sql: str) -> set[str]:
    """Returns the views that a SELECT may look at: the others need not be read for it."""
    words = set(re.findall(r"\w+", sql.lower()))
    by_text = {"query", "query_table"}  # functions that take a table's name as a value
    return set(VIEWS) if words & by_text else words & set(VIEWS)


def _select_of(view: str) -> str:
    return (SQL_FOLDER / "views" / f"{view}.sql").read_text(encoding="utf-8")


def unite(connection: DuckDBPyConnection, name: str, tables: Sequence[str]) -> None:
    """Lets checks read several tables as one, with a row's table (`split`) and `index`."""
    select = "select '{0}' as split, extra_info.index, * from {0}"
    rows = " union all ".join(map(select.format, tables))
    connection.execute(f"create view {name} as {rows}")


def violations(
    connection: DuckDBPyConnection, check: Query, parameters: Mapping[str, Value] | None = None
) -> pl.DataFrame:
    """Returns the rows that violate a check of the connection's tables; none: it passes."""
    tables = [name for (name,) in connection.sql("show tables").fetchall()]
    return _select(connection, check.sql, check.bind(parameters or {}), tables)


def _dataset(files: run_files.Files, columns: pa.Schema) -> pa.Table | pads.Dataset:
    """A lazy table over parquet files; a column that a file lacks is null."""
    if not files:
        return columns.empty_table()
    import pyarrow.dataset as pads  # takes longer to import than most questions to answer
    from pyarrow.fs import LocalFileSystem

    named = [(str(file.absolute()), run) for run, some in files.items() for file in some]
    return pads.FileSystemDataset.from_paths(
        [path for path, _ in named],
        schema=columns,
        format=pads.ParquetFileFormat(),
        filesystem=LocalFileSystem(),
        partitions=[pads.field("run_id") == run for _, run in named],  # not what is in the file
    )


@contextmanager
def connect(tables: Mapping[str, pa.Table | pads.Dataset]) -> Iterator[DuckDBPyConnection]:
    """Yields an in-memory DuckDB that can read `tables`, and nothing else."""
    # Nobody can guess its name, and only this user can read it.
    spill = tempfile.TemporaryDirectory(prefix="countdown-train-sql-", ignore_cleanup_errors=True)
    config: dict[str, str | bool | int] = {
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": spill.name,
    }
    with spill, duckdb.connect(":memory:", config=config) as connection:
        connection.execute(_SETTINGS)
        flip = lambda differences: sign_flip_p(list(map(round, differences)))  # noqa: E731
        connection.create_function("sign_flip_p", flip, ["DOUBLE[]"], "DOUBLE")
        connection.execute((SQL_FOLDER / "macros.sql").read_text(encoding="utf-8"))
        for name, table in tables.items():
            register(connection, name, table)
        yield connection


def register(connection: DuckDBPyConnection, name: str, table: pa.Table | pads.Dataset) -> None:
    """Lets a connection read one more table; ValueError if DuckDB lacks the type of a column."""
    try:
        connection.register(name, table)
    except duckdb.Error as error:
        raise ValueError(f"{name}: a column's type is unknown ({_message(error)})") from error


def _message(error: duckdb.Error) -> str:
    return in_one_line(str(error).split("\n\nLINE ")[0])


def _select(
    connection: DuckDBPyConnection, sql: str, parameters: Mapping[str, Value], tables: Sequence[str]
) -> pl.DataFrame:
    """Returns the rows of one SELECT, else ValueError; `tables`: their names, for messages."""
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
        if not days.is_between(_DAYS[0], _DAYS[1]).all():
            raise ValueError(
                f"column {column.name} holds a date outside of the years 1 to 9999: cast it to "
                f'text, "{column.name}"::varchar'
            )
    return frame
