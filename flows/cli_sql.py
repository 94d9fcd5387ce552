"""The command `countdown-train sql`: saved questions and ad-hoc SELECTs over the runs' files."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.errors import BadInputError

if TYPE_CHECKING:
    import polars as pl

_FORMATS = ("table", "csv", "json", "parquet")


def add_parser(commands: Any) -> None:
    """Adds `sql` to the command line's commands."""
    parser = commands.add_parser(
        "sql",
        help="ask rollouts, metrics, evaluations, checkpoints and runs a question in SQL",
        description="NAME is a saved question (--list); -q asks one of your own. Works while a run "
        "is writing. The views are rollouts, metrics, evaluations, checkpoints and runs.",
    )
    parser.add_argument("words", nargs="*", metavar="NAME | KEY=VALUE")
    parser.add_argument("-q", dest="select", metavar="SELECT", help="one SELECT over the views")
    parser.add_argument("--list", action="store_true", help="list the saved questions")
    parser.add_argument("--run", metavar="RUN", help="one run, or `latest`; by default all runs")
    parser.add_argument(
        "-p", dest="arguments", action="append", default=[], metavar="K=V", help="a $parameter"
    )
    parser.add_argument("--format", choices=_FORMATS, default="table")
    parser.set_defaults(command=sql)


def sql(options: argparse.Namespace) -> None:
    """Answers one question on standard output.

    Raises:
        BadInputError: no such question, parameter or run, or not a SELECT.
    """
    from flows.compose import compose
    from tasks.sql_output import render, render_queries

    width = terminal_width()
    names = [word for word in options.words if "=" not in word]
    config = compose([word for word in options.words if "=" in word])
    if options.list:
        from tasks.sql import list_queries

        sys.stdout.write(render_queries(list_queries(), width=width))
        return
    if len(names) + (options.select is not None) != 1:
        raise BadInputError("sql takes one NAME (sql --list lists them) or -q SELECT")
    try:
        frame = _answer(options, names, root=config.storage.root)
        answer = render(frame, options.format, width=width)
    except ValueError as error:
        raise BadInputError(str(error)) from error
    sys.stdout.buffer.write(answer)


def terminal_width() -> int:
    """Returns the characters per line of the terminal, 120 where there is none."""
    return shutil.get_terminal_size((120, 24)).columns


def _answer(options: argparse.Namespace, names: list[str], *, root: Path) -> pl.DataFrame:
    from tasks.sql import ask, run_query

    arguments = dict(_key_and_value(text) for text in options.arguments)
    if names:
        return ask(names[0], arguments, root=root, run=options.run)
    return run_query(options.select, arguments, root=root, run=options.run)


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"-p {text} is not KEY=VALUE")
    return key, value
