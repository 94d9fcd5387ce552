"""What a person sees while a run goes on: one line per event, above the progress bar."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from rl_core.system.log_file import listening

_WIDTH = 300


class _LineHandler(logging.Handler):
    """Writes `12:01:02 train: message` past tqdm's bar."""

    def __init__(self, *, links: bool) -> None:
        super().__init__(logging.INFO)
        self._links = links

    def emit(self, record: logging.LogRecord) -> None:
        task = getattr(record, "task_run_name", None)
        text = record.getMessage().split("\n", 1)[0][:_WIDTH]
        is_link = text.startswith("View at ")
        if record.levelno >= logging.ERROR or (is_link and not self._links):
            return  # the command ends by saying the error, once
        if not getattr(record, "to_console", True):
            return  # a step's line, and trainer.logger lacks `console`
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        line = f"{time.strftime('%H:%M:%S')} {f'{task}: ' if task else ''}{level}{text}"
        tqdm.write(line, file=sys.stdout)


@contextmanager
def progress_on_stdout(*, links: bool) -> Iterator[None]:
    """Shows what our loggers and Prefect's run loggers say, from INFO up, within the block.

    Args:
        links: whether to show Prefect's links into its UI: those of a private server lead nowhere.
    """
    with listening(_LineHandler(links=links)):
        yield
