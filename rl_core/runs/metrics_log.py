"""The metrics of a run, step by step: `metrics.jsonl`, on the disk before observers get them."""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rl_core.runs.rollout_log import finite_or_none
from rl_core.system.atomic import append_line, write_text_atomically
from rl_core.system.disk_reserve import write_last_words
from rl_core.system.plain_files import read_json_lines

MOST_LOG_BYTES: Final = 256 * 2**20
"""Of a log: 60,000 steps."""
_logger = logging.getLogger(__name__)


def utc_now() -> str:
    """Returns the time in ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Returns the rows of a run's file of JSON lines; none if it cannot be read.

    A row has a `step`, and else only what is a finite number, null or the `time`: nothing else.
    """
    return [
        {name: value for name, value in row.items() if _is_known(name, value)}
        for _, row in read_json_lines(file, most_bytes=MOST_LOG_BYTES)
        if isinstance(row, dict) and type(row.get("step")) is int
    ]


def _is_known(name: str, value: object) -> bool:
    return value is None or type(value) in (int, float) or (name == "time" and type(value) is str)


@dataclass(frozen=True)
class MetricsLog:
    """`metrics.jsonl`: one JSON object per step, readable while the run is active."""

    path: Path

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one line and flushes it to the disk; non-finite numbers become null.

        On a full disk the line is lost with a warning, and the run continues.
        """
        row = {
            "step": step,
            "epoch": int(metrics.get("epoch", 0)),
            "time": utc_now(),
            **{name: finite_or_none(value) for name, value in metrics.items() if name != "epoch"},
        }
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        try:
            write_last_words(self.path.parent, lambda: append_line(self.path, line))
        except OSError as error:
            _logger.warning("the metrics of step %d could not be written: %s", step, error)

    def read(self) -> list[dict[str, Any]]:
        """Returns the rows, without a line that a crash cut short; see `read_rows`."""
        return read_rows(self.path)

    def last_step(self) -> int:
        """Returns the last step that was logged, 0 before the first."""
        return max((row["step"] for row in self.read()), default=0)

    def values(self, name: str) -> list[float]:
        """Returns a metric step by step, without the steps that lack it."""
        return [row[name] for row in self.read() if row.get(name) is not None]

    def cut_after(self, step: int) -> None:
        """Removes the lines of later steps, and one that a crash cut short."""
        if not self.path.exists():
            return
        text = "".join(f"{json.dumps(row)}\n" for row in self.read() if row["step"] <= step)
        write_last_words(self.path.parent, lambda: write_text_atomically(self.path, text))
