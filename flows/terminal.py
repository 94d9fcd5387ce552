"""What a person sees while a run goes on: one line per event, above the progress bar."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

_LOGGERS = ("rl_core", "tasks", "flows", "prefect.flow_runs", "prefect.task_runs")


class _LineHandler(logging.Handler):
    """Writes `12:01:02 train: message` past tqdm's bar; tracebacks go to log.txt and the UI."""

    def emit(self, record: logging.LogRecord) -> None:
        task = getattr(record, "task_run_name", None)
        text = record.getMessage().split("\n", 1)[0]
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        line = f"{time.strftime('%H:%M:%S')} {f'{task}: ' if task else ''}{level}{text}"
        tqdm.write(line, file=sys.stderr)


@contextmanager
def progress_on_stderr() -> Iterator[None]:
    """Shows what our loggers and Prefect's run loggers say, from INFO up, within the block."""
    handler = _LineHandler(logging.INFO)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
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
