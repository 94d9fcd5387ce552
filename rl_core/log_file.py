"""A run's `log.txt`: what the loggers say, in UTC, with credentials blotted out."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOGGERS = ("rl_core", "tasks", "flows", "prefect.flow_runs", "prefect.task_runs")
_SECRET_VARIABLE = re.compile(r"(API_KEY|TOKEN|SECRET|PASSWORD|AUTH_STRING)$")
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
    """Formats `2026-11-20T23:56:31Z WARNING rl_core.checkpoints: ...`, tracebacks redacted too."""

    converter = staticmethod(time.gmtime)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%SZ")

    def format(self, record: logging.LogRecord) -> str:
        """Returns the line (or lines, with a traceback) of one record."""
        return redact(super().format(record))


@contextmanager
def log_to_file(path: Path) -> Iterator[None]:
    """Appends what our loggers and Prefect's run loggers say, from INFO up, to a file.

    Loggers without a level of their own get INFO meanwhile: else WARNING, the root's, would hold.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(RedactingFormatter())
    handler.setLevel(logging.INFO)
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
        handler.close()
