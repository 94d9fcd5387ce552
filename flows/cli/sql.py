"""The command `countdown-train sql`: saved questions and ad-hoc SELECTs over the runs' files."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.errors import BadInputError
from flows.runs.lookup import storage_root

if TYPE_CHECKING:
    import polars as pl

_FORMATS = ("table", "csv", "json", "parquet")


def add_parser(commands: Any) -> None:
    """Adds `sql` to the command line's commands."""
    parser = commands.add_parser(
        "sql",
        help="ask rollouts, metrics, evaluations, checkpoints and runs a question in SQL",
        description="NAME is a saved question (--list); -q asks one of your own. Works while a run "
        "is writing. The views are rollouts, rescores, metrics, evaluations, all_evaluations, "
        "held_out, checkpoints, settings, runs and datasets.",
    )
    parser.add_argument("words", nargs="*", metavar="NAME | KEY=VALUE")
    parser.add_argument("-q", dest="select", metavar="SELECT", help="one SELECT over the views")
    parser.add_argument("--list", action="store_true", help="list the saved questions")
    parser.add_argument("--run", metavar="RUN", help="one run, or `latest`; by default all runs")
    parser.add_argument(
        "-p", dest="arguments", action="append", default=[], metavar="K=V", help="a $parameter"
    )
    parser.add_argument("--shell", action="store_true", help="DuckDB's own shell, or harlequin")
    parser.add_argument("--export", metavar="FILE", help="write the views for any DuckDB client")
    parser.add_argument("--format", choices=_FORMATS, default="table")
    parser.set_defaults(command=sql)


def sql(options: argparse.Namespace) -> None:
    """Answers one question on standard output.

    Raises:
        BadInputError: no such question, parameter or run, or not a SELECT.
    """
    from tasks.queries.render import render, render_queries

    width = terminal_width()
    names = [word for word in options.words if "=" not in word]
    root = storage_root([word for word in options.words if "=" in word])
    if options.list:
        from tasks.queries.sql import list_queries

        sys.stdout.write(render_queries(list_queries(), width=width))
        return
    if options.shell or options.export:
        _open(root, options.export, in_shell=options.shell)
        return
    if len(names) + (options.select is not None) != 1:
        raise BadInputError("sql takes one NAME (sql --list lists them) or -q SELECT")
    try:
        frame = _answer(options, names, root=root)
        answer = render(frame, options.format, width=width)
    except ValueError as error:
        raise BadInputError(str(error)) from error
    sys.stdout.buffer.write(answer)


def _open(root: Path, export: str | None, *, in_shell: bool) -> None:
    """Writes the views into a DuckDB file, and opens a shell on it if asked to."""
    from tasks.queries.sql import export_catalog

    shell = _find_shell() if in_shell else None
    with tempfile.TemporaryDirectory(prefix="countdown-train-") as folder:
        file = Path(export or Path(folder) / "catalog.duckdb")
        try:
            export_catalog(root, file)
        except ValueError as error:
            raise BadInputError(str(error)) from None
        if export:
            sys.stdout.write(f"{file}\n")
            sys.stdout.flush()
        if shell is not None:
            subprocess.run([*shell, str(file)], check=False)


def _find_shell() -> list[str]:
    """Returns the command of harlequin or of DuckDB's shell, whichever is installed."""
    beside = str(Path(sys.executable).parent)
    for name, options in (("harlequin", ["--read-only"]), ("duckdb", ["-readonly"])):
        found = shutil.which(name) or shutil.which(name, path=beside)
        if found:
            return [found, *options]
    raise BadInputError("--shell needs duckdb or harlequin: pip install duckdb-cli")


def terminal_width() -> int:
    """Returns the characters per line of the terminal, 120 where there is none."""
    return shutil.get_terminal_size((120, 24)).columns


def _answer(options: argparse.Namespace, names: list[str], *, root: Path) -> pl.DataFrame:
    from tasks.queries.sql import ask, run_query

    arguments = dict(_key_and_value(text) for text in options.arguments)
    if names:
        return ask(names[0], arguments, root=root, run=options.run)
    return run_query(options.select, arguments, root=root, run=options.run)


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"-p {text} is not KEY=VALUE")
    return key, value
