"""The commands `countdown-train sql`, `runs` and `compare`: questions in SQL to the runs' files."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flows.cli.terminal import say, show_rows, terminal_width
from flows.errors import BadInputError
from flows.runs.lookup import storage_root, take_arguments
from tasks.queries.render import render_queries
from tasks.queries.saved_questions import list_queries
from tasks.queries.sql import ask, export_catalog, run_query

_MOST_ROWS = 60
"""Of an answer on a terminal: a night has a thousand steps."""


def sql(
    words: Sequence[str],
    *,
    select: str | None,
    lists: bool,
    run: str | None,
    parameters: Sequence[str],
    in_shell: bool,
    export: str | None,
    output_format: str,
) -> None:
    """Answers one question on standard output.

    Raises:
        BadInputError: no such question, parameter or run, or not a SELECT.
    """
    names = [word for word in words if "=" not in word]
    root = storage_root([word for word in words if "=" in word])
    if lists:
        sys.stdout.write(render_queries(list_queries(), width=terminal_width()))
        return
    if in_shell or export:
        _open(root, export, in_shell=in_shell)
        return
    if len(names) + (select is not None) != 1:
        raise BadInputError("sql takes one NAME (sql --list lists them) or -q SELECT")
    try:
        values = dict(map(_key_and_value, parameters))
        if select is None:
            frame = ask(names[0], values, root=root, run=run)
        else:
            frame = run_query(select, values, root=root, run=run)
        show_rows(frame, output_format, most_rows=_MOST_ROWS)
    except ValueError as error:
        raise BadInputError(str(error)) from error


def list_runs(words: Sequence[str]) -> None:
    """Prints one line per run."""
    from rl_core.runs.lock import close_lost_runs  # with all settings, which `sql` can do without

    root = storage_root(words)
    close_lost_runs(root)
    show_rows(ask("runs_overview", root=root))


def _open(root: Path, export: str | None, *, in_shell: bool) -> None:
    """Writes the views into a DuckDB file, and opens a shell on it if asked to."""
    shell = _find_shell() if in_shell else None
    with tempfile.TemporaryDirectory(prefix="countdown-train-") as folder:
        file = Path(export or Path(folder) / "catalog.duckdb")
        try:
            export_catalog(root, file)
        except ValueError as error:
            raise BadInputError(str(error)) from None
        if export:
            say(file)
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


def _key_and_value(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"-p {text} is not KEY=VALUE")
    return key, value


def compare(words: Sequence[str]) -> None:
    """Sets runs beside one another, as tables here and as curves in compare.html."""
    from rl_core.runs.lock import close_lost_runs
    from tasks.report_page.compare import compare_runs, write_comparison  # draws: `sql` does not

    asked, settings = take_arguments([word for word in words if "=" in word], ("output",))
    root = storage_root(settings)
    close_lost_runs(root)
    try:
        comparison = compare_runs(root, [word for word in words if "=" not in word])
        page = Path(asked.get("output", root / "compare.html"))
        moved = write_comparison(comparison, page)
    except ValueError as error:
        raise BadInputError(str(error)) from None
    for title, frame in (
        ("what they reached", comparison.overview),
        ("settings that differ", comparison.settings),
        ("who won the same problems", comparison.paired),
    ):
        say(f"\n{title}")
        show_rows(frame)
    say(f"\ncurves: {page}")
    if moved is not None:
        say(f"the page of other runs that was there is now {moved}")
