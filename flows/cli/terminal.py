"""What a person sees of a command: lines and tables; one line per event while a run is active."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from tqdm import tqdm

from rl_core.system.log_file import OUR_LOGGERS
from rl_core.system.redaction import redact
from rl_core.system.words import LINES, cut, printable

if TYPE_CHECKING:
    import polars as pl

_WIDTH = 300


def say(what: object) -> None:
    """Prints a line, or several, without what would steer the terminal."""
    sys.stdout.write(f"{printable(str(what), keep=LINES)}\n")


def show_rows(
    rows: pl.DataFrame | Sequence[Mapping[str, object]],
    output_format: str = "table",
    *,
    most_rows: int | None = None,
) -> None:
    """Prints rows as `render` formats them; of a table, a terminal gets at most `most_rows`."""
    import polars as pl  # not for commands that show no rows

    from tasks.queries.render import render

    frame = rows if isinstance(rows, pl.DataFrame) else pl.DataFrame(rows, infer_schema_length=None)
    sys.stdout.flush()
    is_terminal = sys.stdout.isatty()
    most_rows = most_rows if is_terminal else None
    shown = render(frame, output_format, width=terminal_width(), most_rows=most_rows)
    if is_terminal:  # csv and json hold a model's text as it is
        shown = printable(shown.decode(errors="replace"), keep=LINES).encode()
    if output_format == "table":
        shown = shown.decode().encode(sys.stdout.encoding or "utf-8", "replace")
    sys.stdout.buffer.write(shown)


def terminal_width() -> int:
    """Returns the characters per line of the terminal, 120 where there is none."""
    return shutil.get_terminal_size((120, 24)).columns


def _is_for_a_program() -> bool:
    """Says whether standard output is kept for one JSON object (reply.py)."""
    return getattr(sys.stdout, "name", "") == os.devnull


class WarningHandler(logging.Handler):
    """Writes warnings to standard error, while no `LineHandler` shows them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record, unless the command says it itself at its end."""
        handlers = logging.getLogger(OUR_LOGGERS[0]).handlers
        if record.levelno < logging.ERROR and not any(isinstance(h, LineHandler) for h in handlers):
            sys.stderr.write(f"warning: {_first_line(record)}\n")


class LineHandler(logging.Handler):
    """Writes `12:01:02 train: message` past tqdm's bar."""

    def __init__(self, *, links: bool) -> None:
        super().__init__(logging.INFO)
        self._links = links

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record, unless the command says it itself at its end."""
        task = getattr(record, "task_run_name", None)
        text = cut(_first_line(record), _WIDTH)
        if (
            record.levelno >= logging.ERROR  # the command ends by saying the error, once
            or (text.startswith("View at ") and not self._links)
            or not getattr(record, "to_console", True)  # a step, and trainer.logger lacks `console`
        ):
            return
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        line = f"{time.strftime('%H:%M:%S')} {f'{task}: ' if task else ''}{level}{text}"
        with suppress(OSError):  # a reader that is gone (`| head`, a closed terminal) ends no run
            tqdm.write(line, file=sys.stderr if _is_for_a_program() else sys.stdout)


def _first_line(record: logging.LogRecord) -> str:
    return printable(redact(record.getMessage().split("\n", 1)[0]))
