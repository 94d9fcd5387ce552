"""What Prefect writes into the log of a flow run about its end, without what misleads."""

from __future__ import annotations

import logging
from typing import Final

from flows.errors import BadInputError, SettingsError, one_line
from flows.runs.state import is_cancelled, is_suspended
from rl_core.system.log_file import PREFECTS_RUN_LOGGERS
from tasks.preflight_checks.finding import PreflightError

_MISTAKES: Final = (BadInputError, SettingsError, PreflightError)
"""Worded for the person who made them: where in the program they were found helps nobody."""


class _End(logging.Filter):
    """Tells a mistake once, in one line, and a stop that was asked for as no crash."""

    def __init__(self) -> None:
        super().__init__()
        self._told: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if isinstance(error, _MISTAKES) and error is not self._told:
            self._told = error
            record.msg, record.args, record.exc_info = one_line(error), (), None
            return True
        said = record.getMessage()
        if self._told is not None and str(self._told) in said:
            return False
        return not (said.startswith("Crash detected!") and (is_cancelled() or is_suspended()))


def tell_the_end_plainly() -> None:
    """Has the logs of this process's flow and task runs end with what a person can use."""
    for name in PREFECTS_RUN_LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, _End) for one in logger.filters):
            logger.addFilter(_end)


_end: Final = _End()
