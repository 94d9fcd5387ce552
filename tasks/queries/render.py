"""Shows the rows of a query: a table that fits the terminal, or CSV, JSON or parquet as bytes."""

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby

import polars as pl

from rl_core.system.words import counted, cut, printable
from tasks.queries.saved_questions import Query

_LONG_TEXT = 40  # cells up to this many characters are never shortened
_MOST_RECORDS = 10  # rows of long texts that are shown one below the other
_FORMULA = r"^[=+\-@\t\r]"  # begins a text that a spreadsheet would compute
_NUMBER = r"^[+-]?[0-9]+([.][0-9]*)?([eE][+-]?[0-9]+)?$"
_LEAST_TEXT = 12  # columns of longer texts are never narrower than this


def render(
    frame: pl.DataFrame, output_format: str, *, width: int, most_rows: int | None = None
) -> bytes:
    """Returns rows as table, csv, json or parquet; a long table: only the first and last."""
    if output_format == "table":
        frame = frame.rename({name: printable(name) for name in frame.columns})
        return _table(frame, width, most_rows or max(1, frame.height))
    try:
        if output_format == "csv":
            return _csv(frame)
        if output_format == "json":
            return frame.write_json().encode() + b"\n"
        frame.write_parquet(buffer := io.BytesIO())
        return buffer.getvalue()
    except pl.exceptions.PanicException:  # a list or struct with a date outside Python's years
        raise ValueError(
            "a column of the answer holds what cannot be shown: cast it to text, COLUMN::varchar"
        ) from None


def render_queries(queries: Sequence[Query], *, width: int) -> str:
    """Returns the list of saved queries: names, what a row is, parameters with their defaults."""
    rows: list[tuple[str, str]] = []
    for topic, some in groupby(queries, key=lambda query: query.topic):
        rows.append((f"{topic}:", ""))
        for query in some:
            rows.append((f"  {query.name}", query.description))
            if query.parameters:
                rows.append(("", "  ".join(f"-p {p.name}={p.default}" for p in query.parameters)))
    return _named_texts(rows, width)


def plain_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table as wide as its texts need, a line per row."""
    return _side_by_side(
        _align(column, to_right=False) for column in zip(heads, *rows, strict=True)
    )


def _side_by_side(columns: Iterable[Sequence[str]]) -> str:
    return "".join(f"{'  '.join(row).rstrip()}\n" for row in zip(*columns, strict=True))


def _table(every: pl.DataFrame, width: int, most_rows: int) -> bytes:
    """Returns a table; if it is too wide, it is made narrower step by step.

    A text that is the same in all rows is shown once above it; names of columns are folded; long
    texts share the remaining width. A few rows that still do not fit are shown one below the other.
    """
    half = most_rows // 2
    is_cut = every.height > most_rows
    frame = pl.concat([every.head(half), every.tail(half)]) if is_cut else every
    cells = {name: [_cell(value) for value in frame[name]] for name in frame.columns}
    heads = {name: name for name in cells}
    shared_texts = ""
    if _width(heads, cells) > width:
        same = {
            name: column[0]
            for name, column in cells.items()
            if frame[name].dtype == pl.String and len(column) > 1 and len(set(column)) == 1
        }
        if len(same) < len(cells):
            shared_texts = "".join(f"{name}: {value}\n" for name, value in same.items())
            cells = {name: column for name, column in cells.items() if name not in same}
    if _width(heads, cells) > width:
        for name, column in cells.items():
            if len(name) > max(map(len, column), default=0):  # its name makes the column wide
                heads[name] = name.replace("_", "_\n")
    longest = max((len(cell) for column in cells.values() for cell in column), default=0)
    cells, are_readable = _shortened(heads, cells, width)
    is_too_wide = max(longest, _width(heads, cells)) > width or not are_readable
    if frame.height <= _MOST_RECORDS and is_too_wide:
        return _records(frame, width)
    if is_cut:
        cells = {name: [*column[:half], "⋮", *column[half:]] for name, column in cells.items()}
    height = max((head.count("\n") for head in heads.values()), default=0)
    padded = {name: "\n" * (height - heads[name].count("\n")) + heads[name] for name in cells}
    lines = _side_by_side(
        _align([*padded[name].split("\n"), *column], to_right=frame[name].dtype.is_numeric())
        for name, column in cells.items()
    )
    shown_here = f", the first and last {half} here: --format csv has all" if is_cut else ""
    return f"{shared_texts}{lines}{_count(every)[:-1]}{shown_here})\n".encode()


def _widths(heads: Mapping[str, str], cells: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Returns each column's width in characters, without the two between columns."""
    return {name: max(map(len, [*heads[name].split("\n"), *cells[name]])) for name in cells}


def _width(heads: Mapping[str, str], cells: Mapping[str, Sequence[str]]) -> int:
    return sum(size + 2 for size in _widths(heads, cells).values())


def _shortened(
    heads: Mapping[str, str], cells: Mapping[str, Sequence[str]], width: int
) -> tuple[dict[str, list[str]], bool]:
    """Returns all cells, long texts cut to the same width, and whether that is readable."""
    widths = _widths(heads, cells)
    long = [name for name, size in widths.items() if size > _LONG_TEXT]
    left = width - sum(size + 2 for size in widths.values() if size <= _LONG_TEXT)
    room = max(_LEAST_TEXT, left // max(1, len(long)) - 2)
    return {
        name: [cut(cell, room) if name in long else cell for cell in column]
        for name, column in cells.items()
    }, room >= _LONG_TEXT or not long


def _align(column: Sequence[str], *, to_right: bool) -> list[str]:
    """Pads cells to one width on a terminal; rich's tables take a second for a thousand rows."""
    if not all(map(str.isascii, column)):
        from rich.cells import cell_len
    sizes = [len(cell) if cell.isascii() else cell_len(cell) for cell in column]
    gaps = [" " * (max(sizes) - size) for size in sizes]
    return [gap + cell if to_right else cell + gap for cell, gap in zip(column, gaps, strict=True)]


def _records(frame: pl.DataFrame, width: int) -> bytes:
    rows: list[tuple[str, str]] = []
    for number, row in enumerate(frame.iter_rows(named=True), start=1):
        rows.append((f"-- {number} --", ""))
        for name, value in row.items():
            lines = value.splitlines() or [""] if isinstance(value, str) else [value]
            rows.append((name, "\n".join(map(_cell, lines))))
    return f"{_named_texts(rows, width)}{_count(frame)}\n".encode()


def _named_texts(rows: Iterable[tuple[str, str]], width: int) -> str:
    """Returns each name with its text next to it, wrapped as a terminal so wide shows it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    console = Console(file=io.StringIO(), width=width, highlight=False)
    with console.capture() as shown:
        console.print(table)
    return "".join(f"{line.rstrip()}\n" for line in shown.get().splitlines())


def _cell(value: object) -> str:
    """One value on one line; a model's text may hold anything, so control characters are shown."""
    match value:
        case None:
            return "-"
        case float():
            return f"{value:.4g}" if abs(value) < 10_000 else f"{value:.0f}"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
    plain = value.to_list() if isinstance(value, pl.Series) else value
    return printable(str(plain).replace("\n", "⏎"))


def _count(frame: pl.DataFrame) -> str:
    return f"({counted(frame.height, 'row') if frame.height else 'no rows'})"


def _csv(frame: pl.DataFrame) -> bytes:
    nested = [name for name, dtype in frame.schema.items() if dtype.is_nested()]
    flat = frame.with_columns(
        pl.Series(name, [json.dumps(value, default=str) for value in frame[name].to_list()])
        for name in nested
    )
    safe = flat.with_columns(
        pl.when(pl.col(pl.String).str.contains(_FORMULA) & ~pl.col(pl.String).str.contains(_NUMBER))
        .then("'" + pl.col(pl.String))
        .otherwise(pl.col(pl.String))
        .name.keep()
    )
    heads = {name: f"'{name}" for name in safe.columns if re.match(_FORMULA, name)}
    return safe.rename(heads).write_csv().encode()
