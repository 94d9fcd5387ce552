"""The metrics of a run, step by step: `metrics.jsonl`, on the disk before observers get them."""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_core.runs.rollout_log import finite_or_none
from rl_core.system.atomic import append_line, write_text_atomically
from rl_core.system.disk_reserve import write_last_words

_logger = logging.getLogger(__name__)


def utc_now() -> str:
    """Returns the time in ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True)
class MetricsLog:
    """`metrics.jsonl`: one JSON object per step, readable while the run goes on."""

    path: Path

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one line and flushes it to the disk; non-finite numbers become null.

        On a full disk the line is lost with a warning, and the run goes on.
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
        """Returns the rows, without a line that a crash cut short."""
        if not self.path.exists():
            return []
        rows = []
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                rows.append(json.loads(line))
        return [row for row in rows if isinstance(row, dict)]

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
