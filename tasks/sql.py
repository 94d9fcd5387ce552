"""Asks a run's files questions in SQL: saved queries, ad-hoc SELECTs and data checks.

DuckDB never touches a file here: it sees tables that this module reads with pyarrow, so that no
SELECT, however clever, can read or write anything else (DuckDB 2 lets a CTE hold a COPY).
"""

from __future__ import annotations

import difflib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pads

from rl_core import schema
from tasks import run_files

SQL_FOLDER = Path(__file__).resolve().parent.parent / "sql"
VIEWS = ("rollouts", "metrics", "evaluations", "checkpoints", "runs")

Value = int | float | str | bool

_HEADER_PARAMETER = re.compile(
    r"^\$(?P<name>\w+): (?P<kind>int|float|str|bool) = (?P<default>\S+)(?:\s+\((?P<help>.*)\))?$"
)
_KINDS: dict[str, type[Value]] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True)
class Parameter:
    """One `$name` of a saved query, declared in its header as `-- $name: kind = default (help)`."""

    name: str
    kind: str
    default: Value
    help: str

    def read(self, text: Value) -> Value:
        """Returns `text` as a value of this parameter's kind.

        Raises:
            ValueError: `text` does not read as that kind.
        """
        return _read_value(self.name, self.kind, text)


@dataclass(frozen=True)
class Query:
    """One saved question: a file of `sql/`."""

    name: str
    topic: str
    """Its folder: rollouts, metrics, evaluation or runs."""
    description: str
    """The header comment: what a row is, and what to ask it for."""
    parameters: tuple[Parameter, ...]
    sql: str

    def bind(self, arguments: Mapping[str, Value]) -> dict[str, Value]:
        """Returns a value for every parameter: the argument where given, else the default.

        Raises:
            ValueError: an argument is unknown or does not read as its parameter's kind.
        """
        known = {parameter.name: parameter for parameter in self.parameters}
        for name in arguments:
            if name not in known:
                usage = ", ".join(f"{p.name}={p.default}" for p in self.parameters) or "none"
                hint = _nearest(name, known)
                raise ValueError(
                    f"sql {self.name} has no parameter {name!r}{hint} (it takes: {usage})"
                )
        return {
            name: parameter.read(arguments.get(name, parameter.default))
            for name, parameter in known.items()
        }


def list_queries() -> list[Query]:
    """Returns all saved queries, by topic and name."""
    files = [
        path
        for path in sorted(SQL_FOLDER.glob("*/*.sql"))
        if path.parent.name not in ("views", "checks")
    ]
    return [_parse(path) for path in files]


def load_query(name: str) -> Query:
    """Returns the saved query called `name`.

    Raises:
        ValueError: there is none; the message names the nearest.
    """
    queries = {query.name: query for query in list_queries()}
    if name not in queries:
        hint = _nearest(name, queries)
        raise ValueError(f"no saved query {name!r}{hint}; `countdown-train sql --list` lists all")
    return queries[name]


def ask(
    name: str, arguments: Mapping[str, Value] | None = None, *, root: Path, run: str | None = None
) -> pl.DataFrame:
    """Returns the answer of a saved query.

    Args:
        name: the query's name.
        arguments: values of its parameters, as text or typed; defaults fill the rest.
        root: `storage.root`.
        run: a run id or `latest`; by default all runs.

    Raises:
        ValueError: unknown query, parameter or run, or a value of the wrong kind.
    """
    query = load_query(name)
    return run_query(query.sql, query.bind(arguments or {}), root=root, run=run)


def run_query(
    sql: str,
    parameters: Mapping[str, Value] | None = None,
    *,
    root: Path,
    run: str | None = None,
) -> pl.DataFrame:
    """Returns the rows of one read-only SELECT over the views of `sql/views`.

    Args:
        sql: one SELECT (WITH, FROM, VALUES, DESCRIBE and SUMMARIZE count as such).
        parameters: values of its `$parameters`.
        root: `storage.root`; runs may be writing there meanwhile.
        run: a run id or `latest`; by default all runs.

    Raises:
        ValueError: not one SELECT, or DuckDB refuses it; the message is one or two lines.
    """
    runs = run_files.find_runs(root, run)
    tables = {
        "rollout_rows": _dataset(run_files.parquet_files(runs, "rollouts"), schema.ROLLOUTS),
        "evaluation_rows": _dataset(run_files.parquet_files(runs, "eval"), schema.EVALUATION),
        "metric_lines": run_files.metric_lines(runs),
        "checkpoint_records": run_files.checkpoint_records(runs),
        "run_records": run_files.run_records(runs),
    }
    with _connection(tables) as connection:
        for view in VIEWS:
            select = (SQL_FOLDER / "views" / f"{view}.sql").read_text(encoding="utf-8")
            connection.execute(f"create view {view} as {select}")
        return _select(connection, sql, parameters or {}, VIEWS)


def run_check(
    path: Path, *, train: Path, test: Path, parameters: Mapping[str, Value] | None = None
) -> pl.DataFrame:
    """Returns the rows that violate one data check (none: it passes).

    The check's SELECT reads the tables `train` and `test`, and may call
    `evaluates_to(solution varchar, nums bigint[], target bigint) -> boolean`.

    Args:
        path: the check, a file of `sql/checks`.
        train: the train split, parquet.
        test: the test split, parquet.
        parameters: values of its `$parameters`; defaults come from the check's header.

    Raises:
        ValueError: a split is missing or not parquet, or the SELECT does not fit its columns.
    """
    query = _parse(path)
    tables = {"train": _dataset([train]), "test": _dataset([test])}
    with _connection(tables) as connection:
        connection.create_function(
            "evaluates_to", _evaluates_to, ["VARCHAR", "BIGINT[]", "BIGINT"], "BOOLEAN"
        )
        return _select(connection, query.sql, query.bind(parameters or {}), tuple(tables))


def _evaluates_to(solution: str, nums: Sequence[int], target: int) -> bool:
    """Whether the scorer itself calls `solution` correct."""
    from rl_core.envs.countdown import score_response

    return score_response(f"<answer>{solution}</answer>", nums, target).verdict == "correct"


@contextmanager
def _connection(
    tables: Mapping[str, pa.Table | pads.Dataset],
) -> Iterator[duckdb.DuckDBPyConnection]:
    """An in-memory DuckDB that sees `tables` and nothing else: no files, no extensions."""
    config: dict[str, str | bool | int] = {
        "enable_external_access": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_community_extensions": False,
        "python_enable_replacements": False,
        "temp_directory": str(Path(tempfile.gettempdir()) / f"countdown-train-sql-{os.getpid()}"),
    }
    connection = duckdb.connect(":memory:", config=config)
    try:
        connection.execute("set TimeZone = 'UTC'")
        connection.execute("set lock_configuration = true")
        for name, table in tables.items():
            connection.register(name, table)
        yield connection
    finally:
        connection.close()


def _select(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    parameters: Mapping[str, Value],
    tables: Sequence[str],
) -> pl.DataFrame:
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            kinds = ", ".join(statement.type.name for statement in statements) or "nothing"
            raise ValueError(f"sql takes exactly one SELECT, and this is {kinds}: {sql.strip()}")
        relation = connection.sql(sql, params=dict(parameters) or None)
        return pl.DataFrame(relation.to_arrow_table())
    except duckdb.Error as error:
        message = " ".join(str(error).split("\n\nLINE ")[0].split())
        raise ValueError(f"{message} (there are: {', '.join(tables)})") from error


def _dataset(files: Sequence[Path], columns: pa.Schema | None = None) -> pa.Table | pads.Dataset:
    """A lazy table over parquet files; with `columns`, a column that a file lacks is null."""
    if not files and columns is not None:
        return columns.empty_table()
    try:
        return pads.dataset([str(file) for file in files], schema=columns, format="parquet")
    except (pa.ArrowInvalid, OSError) as error:
        names = ", ".join(str(file) for file in files[:3])
        raise ValueError(f"{names}: not a readable parquet file ({error})") from error


def _parse(path: Path) -> Query:
    """Reads a query's header: lines of comment, then parameter lines, then the SELECT."""
    sql = path.read_text(encoding="utf-8")
    description: list[str] = []
    parameters: list[Parameter] = []
    for line in sql.splitlines():
        if not line.startswith("--"):
            break
        text = line.removeprefix("--").strip()
        if not text.startswith("$"):
            description.append(text)
            continue
        match = _HEADER_PARAMETER.match(text)
        if match is None:
            raise ValueError(f"{path}: {line!r} does not read as `-- $name: kind = default (help)`")
        default = _read_value(match["name"], match["kind"], match["default"])
        parameters.append(Parameter(match["name"], match["kind"], default, match["help"] or ""))
    return Query(path.stem, path.parent.name, " ".join(description), tuple(parameters), sql)


def _read_value(name: str, kind: str, text: Value) -> Value:
    try:
        if kind == "bool":
            return {"true": True, "false": False}[str(text).lower()]
        return _KINDS[kind](text)
    except (KeyError, ValueError) as error:
        raise ValueError(f"parameter {name}={text} does not read as {kind}") from error


def _nearest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else ""
