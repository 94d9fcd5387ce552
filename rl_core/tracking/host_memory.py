"""The machine's memory while a run trains: which process holds it, and a warning.

Only a process's own memory counts for it. Memory that processes share (the object store of a
private Ray) counts once.
"""

import logging
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.oom_recovery import remedies
from rl_core.runs.run_folder import RunFolder
from rl_core.system.words import GIB

HOST_GIB: Final = "memory/host_gib/"
AVAILABLE_GIB: Final = "memory/host_available_gib"
INTERVAL_S: Final = 5.0
_LEVELS: Final = (0.15, 0.08)
"""Shares of the memory left at which to warn; at 0.05 Ray kills a worker."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Usage:
    """The machine's memory at one moment, in bytes."""

    processes: Mapping[str, int]
    """Own memory of `trainer`, `learner`, `engine_0`, ..., and of all `others` of the run."""
    object_store_bytes: int
    """Pages that Ray's object store has touched: it never gives them back."""
    available_bytes: int
    """Left to programs, in the machine or in the tightest control group around us."""
    limit_bytes: int
    """The size of that machine or group."""


def usage_now() -> Usage:
    """Returns what this process and its descendants hold, and what is left."""
    processes: dict[str, int] = {}
    object_store = 0
    this_process = psutil.Process()
    for process in (this_process, *this_process.children(recursive=True)):
        # Processes may end meanwhile, and some may not be readable.
        with suppress(psutil.Error, OSError, LookupError):
            name = "trainer" if process == this_process else worker_name(process.pid)
            processes[name] = processes.get(name, 0) + own_bytes(process.pid)
            if process.name() == "raylet":
                object_store += _object_store_bytes(process.pid)
    return Usage(processes, object_store, *memory_left())


def memory_left() -> tuple[int, int]:
    """Returns the bytes left and the limit of the machine, or of the tightest group around us."""
    machine = psutil.virtual_memory()
    groups = cgroup_rooms(
        Path("/proc/self/cgroup").read_text(encoding="utf-8"), Path("/sys/fs/cgroup")
    )
    return min([(int(machine.available), int(machine.total)), *groups])


def cgroup_rooms(membership: str, root: Path) -> Iterator[tuple[int, int]]:
    """Yields what each control group around a process has left, and its limit, in bytes.

    File pages that it could drop count as left. Both versions of control groups are read.
    `membership` is the text of `/proc/PID/cgroup`, `root` where control groups are mounted.
    """
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = root
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        inner = mount / path.strip("/")
        for group in (inner, *inner.parents):
            if not group.is_relative_to(mount):
                break
            with suppress(OSError, ValueError, IndexError):  # no limit ("max"), or no such file
                limit = int((group / names[0]).read_text(encoding="ascii"))
                used = int((group / names[1]).read_text(encoding="ascii"))
                stat = (group / "memory.stat").read_text(encoding="ascii")
                droppable = int(stat.split(f"{names[2]} ")[1].split()[0])
                yield limit - used + droppable, limit


class HostMemory:
    """Watches the machine's memory in a thread: warns with a remedy, and notes peaks in the run."""

    def __init__(
        self, config: RunConfig, run: RunFolder, look: Callable[[], Usage] = usage_now
    ) -> None:
        self._config = config
        self._run = run
        self._look = look
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="host memory", daemon=True)
        self._lock = threading.Lock()
        self._last: Usage | None = None
        self._since_asked: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._levels_left = list(_LEVELS)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(INTERVAL_S)
        with self._lock:
            peaks = {name: round(gib, 3) for name, gib in self._peaks.items()}
        before = self._run.read().host_peak_gib  # of earlier attempts
        highest = {name: max(gib, before.get(name, 0.0)) for name, gib in peaks.items()}
        self._run.update(host_peak_gib=before | highest)

    def measure(self) -> dict[str, float]:
        """Returns `memory/host_gib/<process>`, peaks since the last call, and what is left."""
        with self._lock:
            peaks = self._since_asked
            self._since_asked = {}
            last = self._last
        if last is None:
            return {}
        named = {f"{HOST_GIB}{name}": gib for name, gib in (_in_gib(last) | peaks).items()}
        return named | {AVAILABLE_GIB: last.available_bytes / GIB}

    def note(self, usage: Usage) -> None:
        """Remembers peaks, and warns if little is left: once for each level."""
        gib = _in_gib(usage)
        with self._lock:
            self._last = usage
            for peaks in (self._since_asked, self._peaks):
                peaks.update({name: max(gib[name], peaks.get(name, 0.0)) for name in gib})
        reached = [x for x in self._levels_left if usage.available_bytes < x * usage.limit_bytes]
        if reached:
            self._levels_left = [level for level in self._levels_left if level not in reached]
            _logger.warning("%s", warning(usage, self._config))

    def _watch(self) -> None:
        while not self._over.is_set():
            try:
                self.note(self._look())
            except Exception:  # nothing here may end a run
                _logger.exception("the machine's memory cannot be watched:")
                return
            self._over.wait(INTERVAL_S)


def warning(usage: Usage, config: RunConfig) -> str:
    """Returns the warning: memory is short, which processes hold it, what helps."""
    largest = max(usage.processes, key=lambda name: usage.processes[name], default="trainer")
    held = sorted(_in_gib(usage).items(), key=lambda item: -item[1])
    run_bytes = sum(usage.processes.values()) + usage.object_store_bytes
    elsewhere = max(usage.limit_bytes - usage.available_bytes - run_bytes, 0)
    where = "gen" if largest.startswith("engine") else largest
    helpful = remedies(config, OutOfMemory(where, "killed"))
    return (
        f"memory is short: {usage.available_bytes / GIB:.1f} of {usage.limit_bytes / GIB:.1f} "
        f"GiB are left, and the kernel kills a process when none is. This run holds "
        f"{run_bytes / GIB:.1f} ({', '.join(f'{name} {gib:.1f}' for name, gib in held)}), "
        f"the rest of the machine {elsewhere / GIB:.1f}. What helps: "
        f"{' or '.join(helpful) or 'a machine with more memory'}"
    )


def _in_gib(usage: Usage) -> dict[str, float]:
    named = dict(usage.processes)
    if usage.object_store_bytes:
        named["object_store"] = usage.object_store_bytes
    return {name: count / GIB for name, count in named.items()}


def worker_name(pid: int) -> str:
    """Returns `learner` or `engine_0`, by the file that a worker's output goes to, or `others`."""
    match = re.search(r"/(learner|engine_\d+)\.log$", str(Path(f"/proc/{pid}/fd/1").readlink()))
    return match[1] if match else "others"


def own_bytes(pid: int) -> int:
    """Returns the bytes of a process's own pages: neither of a file nor shared."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
    return int(status.split("RssAnon:")[1].split()[0]) * 1024


def _object_store_bytes(raylet: int) -> int:
    for descriptor in Path(f"/proc/{raylet}/fd").iterdir():
        with suppress(OSError):
            if re.search(r"/plasma\w* \(deleted\)$", str(descriptor.readlink())):
                return descriptor.stat().st_blocks * 512
    return 0
