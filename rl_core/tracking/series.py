"""Series of a run's metrics, as the rules of the diagnosis read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

FEWEST_STEPS = 8
"""Of a series that has a beginning and an end."""
LONGEST_WINDOW = 20
"""Steps that its beginning, or its end, is the mean of, at most."""


class Series:
    """The metrics of a run's training steps, by name; a step's row may lack some.

    Step 0, the test before training, counts for `val/*` alone.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._rows = sorted(rows, key=lambda row: int(row["step"]))

    def points(self, name: str) -> list[tuple[int, float]]:
        """Returns (step, value) of a metric, oldest first, without the steps that lack it."""
        return [
            (int(row["step"]), float(row[name]))
            for row in self._rows
            if row.get(name) is not None and (row["step"] > 0 or name.startswith("val/"))
        ]

    def ending(self, prefix: str) -> list[str]:
        """Returns what follows a prefix in the names of metrics: phases, for one."""
        names = (name for row in self._rows for name in row if name.startswith(prefix))
        return list(dict.fromkeys(name.removeprefix(prefix) for name in names))

    def names(self, prefix: str) -> list[str]:
        """Returns the metrics of the last step whose names begin so."""
        return [name for row in self._rows[-1:] for name in row if name.startswith(prefix)]

    def values(self, name: str) -> list[float]:
        """Returns a metric's values, oldest first."""
        return [value for _, value in self.points(name)]

    def ends(self, name: str) -> tuple[float, float] | None:
        """Returns the means of a metric's first and last steps; None for too short a series."""
        values = self.values(name)
        if len(values) < FEWEST_STEPS:
            return None
        width = min(LONGEST_WINDOW, len(values) // 4)
        return fmean(values[:width]), fmean(values[-width:])

    def gain(self, name: str) -> float | None:
        """Returns by how much a metric rose from its first steps to its last."""
        ends = self.ends(name)
        return None if ends is None else ends[1] - ends[0]
