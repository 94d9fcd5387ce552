"""Shows the rows of a query: a table that fits the terminal, or CSV, JSON or parquet as bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from datetime import datetime

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.sql import Query

FORMATS = ("table", "csv", "json", "parquet")
_LONG_TEXT = 40
"""Cells up to this many characters are never shortened."""
_MOST_RECORDS = 10
"""Up to this many rows with a text longer than a line are shown one below the other."""
_LEAST_TEXT = 12
"""Columns of longer text are narrowed to this many characters at most."""


def render(frame: pl.DataFrame, output_format: str, *, width: int) -> bytes:
    """Returns rows in one of `FORMATS`, ready to be written to standard output.

    Args:
        frame: the rows.
        output_format: `table`, `csv`, `json` (a list of objects) or `parquet`.
        width: characters per line of the table.

    Raises:
        ValueError: there is no such format.
    """
    if output_format not in _RENDERERS:
        raise ValueError(f"--format {output_format}: choose one of {', '.join(FORMATS)}")
    return _RENDERERS[output_format](frame, width)


def render_queries(queries: Sequence[Query], *, width: int) -> str:
    """Returns the list of saved queries: names, what a row is, parameters with their defaults."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    topic = ""
    for query in queries:
        if query.topic != topic:
            topic = query.topic
            table.add_row(Text(f"{topic}:", style="dim"), "")
        options = "  ".join(f"-p {p.name}={p.default}" for p in query.parameters)
        table.add_row(Text(f"  {query.name}"), Text(query.description))
        if options:
            table.add_row("", Text(options, style="dim"))
    return _print(table, width)


def _table(frame: pl.DataFrame, width: int) -> bytes:
    """A table whose long texts share what room the short columns leave; few long texts in full."""
    longest = max((len(str(value)) for row in frame.iter_rows() for value in row), default=0)
    if frame.height <= _MOST_RECORDS and longest > width:
        return _records(frame, width)
    cells = {name: [_cell(value) for value in frame[name]] for name in frame.columns}
    widths = {
        name: max([len(name), *(len(cell) for cell in column)]) for name, column in cells.items()
    }
    long = [name for name, size in widths.items() if size > _LONG_TEXT]
    left = width - sum(size + 2 for name, size in widths.items() if name not in long)
    room = max(_LEAST_TEXT, left // max(1, len(long)) - 2)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in frame.columns:
        numeric = frame[name].dtype.is_numeric()
        table.add_column(Text(name), justify="right" if numeric else "left", no_wrap=True)
    for row in range(frame.height):
        table.add_row(
            *(
                Text(_shorten(cells[name][row], room) if name in long else cells[name][row])
                for name in frame.columns
            )
        )
    natural = sum(min(size, room) if name in long else size for name, size in widths.items())
    printed = _print(table, max(width, natural + 2 * len(widths)))
    return f"{printed}{_count(frame)}\n".encode()


def _records(frame: pl.DataFrame, width: int) -> bytes:
    """One block per row, one line per value, long texts below each other: for reading responses."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        table.add_row(Text(f"-- {number} --"), "")
        for name, value in row.items():
            lines = [_cell(line) for line in str(value).splitlines()] or [""]
            text = "\n".join(lines) if isinstance(value, str) else _cell(value)
            table.add_row(Text(name), Text(text))
    return f"{_print(table, width)}{_count(frame)}\n".encode()


def _cell(value: object) -> str:
    """One value on one line; a model's text may hold anything, so control characters are shown."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    if isinstance(value, pl.Series):
        value = value.to_list()
    text = str(value).replace("\n", "⏎")
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def _count(frame: pl.DataFrame) -> str:
    return f"({frame.height or 'no'} row{'' if frame.height == 1 else 's'})"


def _shorten(text: str, room: int) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"


def _csv(frame: pl.DataFrame, width: int) -> bytes:
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    flat = frame.with_columns(
        pl.Series(name, [json.dumps(value, default=str) for value in frame[name].to_list()])
        for name in nested
    )
    return flat.write_csv().encode()


def _json(frame: pl.DataFrame, width: int) -> bytes:
    return frame.write_json().encode() + b"\n"


def _parquet(frame: pl.DataFrame, width: int) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


def _print(table: Table, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return "".join(f"{line.rstrip()}\n" for line in console.file.getvalue().splitlines())


_RENDERERS: dict[str, Callable[[pl.DataFrame, int], bytes]] = {
    "table": _table,
    "csv": _csv,
    "json": _json,
    "parquet": _parquet,
}
