"""Samples processes and folders of a soak's run, and finds which of them grow."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import psutil

from rl_core.tracking.host_memory import own_bytes, worker_name

MOST_MB_PER_STEP: Final = 0.2
MOST_MORE: Final = 4
"""Open files or threads that the last quarter of the steps may have more than the first."""
_MB: Final = 1e6
_MOST_POINTS: Final = 1_000


@dataclass(frozen=True)
class Look:
    """One process, or several of one name, at one moment."""

    step: int
    time_s: float
    own_mb: float
    files: int
    threads: int
    cpu_s: float


@dataclass(frozen=True)
class Row:
    """The growth of one process over the steps after the warm-up."""

    name: str
    mb_first: float
    mb_last: float
    mb_per_step: float
    files_more: float
    threads_more: float
    cpu_s_per_step: float
    cpu_drift: float
    """Change of the CPU seconds per step over all these steps, as a share of them."""

    def faults(self) -> list[str]:
        """Returns what is beyond its limit, in words."""
        found = []
        if self.mb_per_step > MOST_MB_PER_STEP:
            found.append(f"{self.name} gains {self.mb_per_step:.2f} MB per step")
        for what, more in (("open files", self.files_more), ("threads", self.threads_more)):
            if more > MOST_MORE:
                found.append(f"{self.name} has {more:.0f} more {what} than at first")
        return found


def summarize(name: str, looks: Sequence[Look]) -> Row:
    """Returns one process's row of the table."""

    def slope(values: Sequence[float], steps: Sequence[float]) -> float:
        return theil_sen_slope(list(zip(steps, values, strict=True)))

    quarter = max(len(looks) // 4, 1)

    def more(values: Sequence[int]) -> float:
        return statistics.median(values[-quarter:]) - statistics.median(values[:quarter])

    steps = [float(look.step) for look in looks]
    rates = [
        (b.step, (b.cpu_s - a.cpu_s) / (b.step - a.step))
        for a, b in zip(looks[:-10], looks[10:], strict=True)  # over ten looks: the clock is coarse
        if b.step > a.step
    ]
    cpu_s = statistics.median(rate for _, rate in rates) if rates else 0.0
    drift = theil_sen_slope(rates) * (steps[-1] - steps[0]) / cpu_s if cpu_s > 0 else 0.0
    return Row(
        name,
        mb_first=statistics.median(look.own_mb for look in looks[:quarter]),
        mb_last=statistics.median(look.own_mb for look in looks[-quarter:]),
        mb_per_step=slope([look.own_mb for look in looks], steps),
        files_more=more([look.files for look in looks]),
        threads_more=more([look.threads for look in looks]),
        cpu_s_per_step=cpu_s,
        cpu_drift=drift,
    )


class Watch:
    """Looks at all processes of a run and of its server.

    Args:
        run: the command's process.
        server: the server's.
    """

    def __init__(self, run: psutil.Process, server: psutil.Process) -> None:
        self._run, self._server = run, server
        self.looks: dict[str, list[Look]] = {}
        self.environments: dict[str, dict[str, str]] = {}
        self.ray_folder: Path | None = None

    def look(self, step: int) -> None:
        """Looks once."""
        found: dict[str, list[float]] = {}
        for name, process in self._processes():
            with suppress(psutil.Error, OSError, LookupError):  # processes come and go
                times = process.cpu_times()
                seen = (
                    own_bytes(process.pid) / _MB,
                    process.num_fds(),
                    process.num_threads(),
                    times.user + times.system,
                )
                so_far = found.get(name, [0.0] * len(seen))
                found[name] = [a + b for a, b in zip(so_far, seen, strict=True)]
                if name not in self.environments:
                    self.environments[name] = process.environ()
        now = time.monotonic()
        for name, (own_mb, files, threads, cpu_s) in found.items():
            look = Look(step, now, own_mb, int(files), int(threads), cpu_s)
            self.looks.setdefault(name, []).append(look)

    def _processes(self) -> Iterator[tuple[str, psutil.Process]]:
        for process in (self._server, *children(self._server)):
            yield "server", process
        yield "flow", self._run
        for process in children(self._run):
            with suppress(psutil.Error, OSError):
                command = process.cmdline()
                if "tasks.supervision.child" in command:
                    yield command[command.index("tasks.supervision.child") + 1], process
                    continue
                name = worker_name(process.pid)
                yield (name if name != "others" else self._ray_name(process)), process

    def _ray_name(self, process: psutil.Process) -> str:
        """Returns `raylet`, `gcs_server`, ..., and notes where Ray keeps its session."""
        for argument in process.cmdline():
            if argument.startswith("--temp-dir="):
                self.ray_folder = Path(argument.partition("=")[2])
        name = process.name()
        return name if name in ("raylet", "gcs_server") else "ray, others"


class Disk:
    """Bytes and files in folders, by step."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self.folders = dict(folders)
        self.seen: dict[str, list[tuple[int, float, int]]] = {}

    def look(self, step: int) -> None:
        """Looks once."""
        for name, folder in self.folders.items():
            sizes = []
            # Folders may vanish meanwhile, which is no error for `os.walk`.
            paths = [Path(at, file) for at, _, files in os.walk(folder) for file in files]
            for path in [folder] if folder.is_file() else paths:
                with suppress(OSError):
                    sizes.append(path.stat().st_blocks * 512)
            self.seen.setdefault(name, []).append((step, sum(sizes) / _MB, len(sizes)))


def children(process: psutil.Process) -> list[psutil.Process]:
    """Returns all descendants of a process, none if it is gone."""
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def theil_sen_slope(points: npt.ArrayLike) -> float:
    """Returns the median slope between any two points; a quarter of them may be outliers.

    `points` are float [N, 2], x and y; of more than a thousand, a thousand evenly spread ones are
    used. 0 for fewer than two different x.
    """
    x, y = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    if len(x) > _MOST_POINTS:
        chosen = np.linspace(0, len(x) - 1, _MOST_POINTS).round().astype(int)
        x, y = x[chosen], y[chosen]
    first, second = np.triu_indices(len(x), 1)
    apart = x[first] != x[second]
    first, second = first[apart], second[apart]
    if not len(first):
        return 0.0
    return float(np.median((y[second] - y[first]) / (x[second] - x[first])))
