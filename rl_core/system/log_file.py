"""A run's `log.txt`: what the loggers say, in UTC, with credentials blotted out."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rl_core.system.atomic import append_line
from rl_core.system.disk_reserve import write_last_words

OUR_LOGGERS: Final = ("rl_core", "tasks", "flows")
Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
"""A logger, or the one that Prefect wraps for a flow or task run."""

PREFECTS_RUN_LOGGERS: Final = ("prefect.flow_runs", "prefect.task_runs")
_SECRET_VARIABLE = re.compile(r"((API|ACCESS|ACCOUNT)_KEY|TOKEN|SECRET|PASSWORD|AUTH_STRING)$")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]+@")
_BLOT = "***"
_MIN_SECRET_LENGTH = 8
"""Shorter values (`test`, `1`) are no secrets, and blotting them out would garble the text."""


def redact(text: str) -> str:
    """Returns the text without credentials.

    Blotted out are user and password of URLs, and the value of every environment variable whose
    name ends like a secret's: WANDB_API_KEY, HF_TOKEN, PREFECT_API_KEY and their kin.
    """
    text = _URL_CREDENTIALS.sub(f"{_BLOT}@", text)
    for name, value in os.environ.items():
        if len(value) >= _MIN_SECRET_LENGTH and _SECRET_VARIABLE.search(name):
            text = text.replace(value, _BLOT)
    return text


class RedactingFormatter(logging.Formatter):
    """Formats `2026-11-20T23:56:31Z WARNING rl_core.runs.resume: ...`, tracebacks redacted too.

    Args:
        layout: another one.
    """

    converter = staticmethod(time.gmtime)

    def __init__(self, layout: str = "%(asctime)s %(levelname)s %(name)s: %(message)s") -> None:
        super().__init__(layout, "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line (or lines, with a traceback) of one record."""
        return redact(super().format(record))


class _LineByLine(logging.Handler):
    """Appends whole records to a file; a full disk costs the record, not the program.

    Args:
        path: the file, in a run's folder.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Appends one record, at the expense of the run's reserve if need be."""
        line = f"{self.format(record)}\n".encode(errors="replace")
        with suppress(OSError):
            write_last_words(
                self._path.parent, lambda: append_line(self._path, line, durable=False)
            )


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Appends what our loggers and Prefect's run loggers say, from INFO up, to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = _LineByLine(path)
    handler.setFormatter(RedactingFormatter())
    with listening(handler):
        yield


@contextmanager
def listening(
    handler: logging.Handler, names: Sequence[str] = (*OUR_LOGGERS, *PREFECTS_RUN_LOGGERS)
) -> Iterator[None]:
    """Has a handler hear loggers from INFO up within the block.

    Loggers without a level of their own get INFO meanwhile: else WARNING, the root's, would hold.
    """
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
