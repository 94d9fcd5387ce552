"""The metrics of a run as series over its steps, as the rules of `diagnosis.py` read them."""

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any, Final

FEWEST_STEPS: Final = 8
"""The fewest steps of a series whose beginning and end are compared."""
LONGEST_WINDOW: Final = 20


class Series:
    """The metrics of a run's training steps, by name; step 0 counts only for `val/*`."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], settings: Mapping[str, Any]) -> None:
        """Takes the rows of a log, and the run's settings by dotted key."""
        self.rows = sorted(rows, key=lambda row: int(row["step"]))
        self.settings = settings

    def points(self, name: str) -> list[tuple[int, float]]:
        """Returns (step, value) of a metric, oldest first, without the steps that lack it."""
        return [
            (int(row["step"]), float(row[name]))
            for row in self.rows
            if row.get(name) is not None and (row["step"] > 0 or name.startswith("val/"))
        ]

    def ending(self, prefix: str) -> list[str]:
        """Returns what follows a prefix in the names of metrics: phases, for example."""
        names = (name for row in self.rows for name in row if name.startswith(prefix))
        return list(dict.fromkeys(name.removeprefix(prefix) for name in names))

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
        """Returns what a metric rose by, from its first steps to its last."""
        ends = self.ends(name)
        return None if ends is None else ends[1] - ends[0]
