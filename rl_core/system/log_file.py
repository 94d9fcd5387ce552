"""A run's `log.txt`: what the loggers write, in UTC, with credentials blotted out."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rl_core.system.atomic import append_line, is_disk_full, open_own
from rl_core.system.disk_reserve import write_last_words
from rl_core.system.redaction import redact
from rl_core.system.words import LINES, printable

OUR_LOGGERS: Final = ("rl_core", "tasks", "flows")
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
"""A logger, or the one that Prefect wraps for a flow or task run."""

PREFECTS_RUN_LOGGERS: Final = ("prefect.flow_runs", "prefect.task_runs")


class RedactingFormatter(logging.Formatter):
    """Formats `2026-11-20T23:56:31Z WARNING rl_core.runs.resume: ...`, tracebacks redacted too."""

    converter = staticmethod(time.gmtime)

    def __init__(self, layout: str = "%(asctime)s %(levelname)s %(name)s: %(message)s") -> None:
        super().__init__(layout, "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        """Returns the lines of a record (several with a traceback), printable on a terminal."""
        return printable(redact(super().format(record)), keep=LINES)


class _LineByLine(logging.Handler):
    """Appends whole records to a run's file; on a full disk a record is lost without an error."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path = path
        self.setFormatter(RedactingFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        """Appends one record, on a full disk in the place of the run's reserve."""
        line = f"{self.format(record)}\n".encode(errors="replace")
        with suppress(OSError):
            write_last_words(
                self._path.parent, lambda: append_line(self._path, line, durable=False)
            )


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Appends what our loggers and Prefect's run loggers write, from INFO up; see `open_own`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        open_own(path, "a").close()
    except OSError as error:
        if not is_disk_full(error):  # then only lines are lost, see `emit`
            raise
    with listening(_LineByLine(path)):
        yield


@contextmanager
def listening(
    handler: logging.Handler, names: Sequence[str] = (*OUR_LOGGERS, *PREFECTS_RUN_LOGGERS)
) -> Iterator[None]:
    """Adds a handler to loggers within the block; those without a level log from INFO up."""
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
