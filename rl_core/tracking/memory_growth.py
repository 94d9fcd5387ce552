"""Whether a process's memory grows steadily, and when the machine's will be full, from the metrics.

Not here: who looks at the processes (host_memory.py), and what is said of it (diagnosis.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

import numpy as np

from rl_core.evaluation.statistics import theil_sen_slope

HOST_GIB: Final = "memory/host_gib/"
AVAILABLE_GIB: Final = "memory/host_available_gib"
WARM_UP_STEPS: Final = 5
"""Models, caches and snapshots find their size in these."""
_FEWEST_STEPS: Final = 16
_MOST_STEPS: Final = 200
"""The last ones count: what has grown once and stands still is no danger."""
_PARTS: Final = 4
_LEAST_GIB: Final = 1 / 32
"""Less over all these steps is no growth: 0.16 MiB per step over the most of them."""

Points = Sequence[tuple[int, float]]
"""(step, GiB), by ascending steps."""


@dataclass(frozen=True)
class Growth:
    """The steady growth of one process's own memory over the steps looked at."""

    process: str
    first_step: int
    last_step: int
    first_gib: float
    last_gib: float
    gib_per_step: float

    def __str__(self) -> str:
        return (
            f"{self.process} {self.first_gib:.2f} -> {self.last_gib:.2f} GiB from step "
            f"{self.first_step} to {self.last_step}, {1024 * self.gib_per_step:.1f} MiB per step"
        )


def growths(held: Mapping[str, Points]) -> list[Growth]:
    """Returns the processes that grow steadily, the fastest first."""
    found = [growth for name, points in held.items() if (growth := _growth(name, points))]
    return sorted(found, key=lambda growth: -growth.gib_per_step)


def full_at(found: Sequence[Growth], available_gib: float) -> int:
    """Returns the step at which nothing of what is available is left, if all go on like that."""
    last_step = max(growth.last_step for growth in found)
    return last_step + round(available_gib / sum(growth.gib_per_step for growth in found))


def _growth(process: str, points: Points) -> Growth | None:
    """Returns the growth of a process, if each quarter of the steps has its share in it.

    A jump is in one of them alone, a cache that fills up slows down, and noise has no direction.
    """
    points = [(step, gib) for step, gib in points if step > WARM_UP_STEPS][-_MOST_STEPS:]
    if len(points) < _FEWEST_STEPS:
        return None
    edges = [len(points) * i // _PARTS for i in range(_PARTS + 1)]
    levels = [median(gib for _, gib in points[a:b]) for a, b in pairwise(edges)]
    rises = [after - before for before, after in pairwise(levels)]
    mean = (levels[-1] - levels[0]) / len(rises)
    if mean <= 0 or min(rises) < mean / 2:
        return None
    slope = theil_sen_slope(points)
    steps, gib = np.asarray(points, dtype=np.float64).T
    beside = gib - slope * steps
    noise = float(np.median(np.abs(beside - np.median(beside))))
    grown = slope * float(steps[-1] - steps[0])
    if grown < max(_LEAST_GIB, 4 * noise):
        return None
    return Growth(
        process=process,
        first_step=points[0][0],
        last_step=points[-1][0],
        first_gib=points[0][1],
        last_gib=points[-1][1],
        gib_per_step=slope,
    )
