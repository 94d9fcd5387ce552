"""What workers on machines without the run's disk print: brought to the run's `workers/` in time.

Each writes to a file on its own machine. A thread here reads what is new of them now and then, so
that the last words of a machine that is gone are here, too.
"""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.client import ray as client

from rl_core.config.run import RunConfig
from rl_core.workers.node_files import NodeFile, cache_folder, on_node
from rl_core.workers.node_software import check_software
from rl_core.workers.reservation import Reservation

_MARK: Final = ".seen-"
_POLL_S: Final = 3.0
_LAST_LOOK_S: Final = 10.0
_READ_BYTES: Final = 2**20
"""Of a file in one look."""
_OLD_S: Final = 7 * 86400.0
"""Of logs that a driver, killed, has never taken away."""


class NodeLogs:
    """The logs of a run's workers, on whatever machine these are; made by `logs_of_cluster`.

    Args:
        folder: the run's `workers/`.
        room: knows which machines the workers are on.
        own_node: Ray's id of the driver's machine.
    """

    def __init__(self, folder: Path, room: Reservation, own_node: str) -> None:
        self._folder, self._room, self.own_node = folder, room, own_node
        for of_killed_driver in folder.glob(f"{_MARK}*"):
            of_killed_driver.unlink(missing_ok=True)
        self._mark = folder / f"{_MARK}{secrets.token_hex(8)}"
        self._mark.touch()
        self._offsets: dict[str, dict[str, int]] = {}
        """By machine and file: how much of it is here."""
        self._asked: dict[str, Future[Any]] = {}
        self._turn = threading.Lock()

    def file(self, name: str) -> NodeFile:
        """Returns where the worker of this name logs."""
        own = Path("logs", self._mark.name, f"{name}.log")
        return NodeFile(self._folder / own.name, self._mark, own)

    def beside(self, file: Path) -> NodeFile:
        """Returns another file on the run's disk, of which each other machine has its own."""
        return NodeFile(file, self._mark, Path(file.name))

    def look(self, timeout_s: float, *, is_last: bool = False) -> None:
        """Appends what is new of all logs to the run's.

        Args:
            timeout_s: how long to wait for machines, which may be gone.
            is_last: whether machines may then forget them.
        """
        with self._turn:
            for node in self._room.nodes() - {self.own_node} - self._asked.keys():
                task = _read.options(scheduling_strategy=on_node(node))
                asked = task.remote(self._mark, self._offsets.get(node, {}), is_last=is_last)
                self._asked[node] = asked.future()
            wait(self._asked.values(), timeout_s)
            for node in [node for node, answer in self._asked.items() if answer.done()]:
                answer = self._asked.pop(node)
                if answer.exception() is None:
                    self._append(self._offsets.setdefault(node, {}), answer.result())

    def close(self) -> None:
        """Leaves no trace of this in the run's folder."""
        self._mark.unlink(missing_ok=True)

    def _append(self, offsets: dict[str, int], news: Mapping[str, bytes]) -> None:
        for name, data in news.items():
            offsets[name] = offsets.get(name, 0) + len(data)
            with suppress(OSError), (self._folder / name).open("ab") as file:
                file.write(data)


@contextmanager
def logs_of_cluster(
    config: RunConfig, folder: Path, room: Reservation
) -> Iterator[NodeLogs | None]:
    """Keeps the run's copy of all logs up to date within the block.

    Yields what does; None where all processes are on this machine, as in a Ray of the run's own.

    Args:
        config: the run's settings.
        folder: the run's `workers/`.
        room: knows which machines the workers are on.

    Raises:
        ValueError: a machine has another version of this program.
    """
    if config.resources.ray_address is None:
        yield None
        return
    # A driver by way of ray:// is on none of Ray's machines.
    own_node = "" if client.is_connected() else ray.get_runtime_context().get_node_id()
    check_software(room.nodes() - {own_node})
    logs, over = NodeLogs(folder, room, own_node), threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_S):
            with suppress(Exception):  # Ray's head may be gone: others say so
                logs.look(_POLL_S)

    thread = threading.Thread(target=watch, name="logs", daemon=True)
    thread.start()
    try:
        yield logs
    finally:
        over.set()
        thread.join()
        with suppress(Exception):
            logs.look(_LAST_LOOK_S, is_last=True)
        logs.close()


def _new_content(mark: Path, offsets: Mapping[str, int], *, is_last: bool) -> dict[str, bytes]:
    """Returns by name what the logs on this machine hold beyond the offsets."""
    folder = cache_folder() / "logs" / mark.name
    if mark.is_file() or not folder.is_dir():
        return {}
    news = {}
    for path in folder.glob("*.log"):
        with path.open("rb") as file:
            file.seek(offsets.get(path.name, 0))
            news[path.name] = file.read(_READ_BYTES)
    if is_last:
        shutil.rmtree(folder, ignore_errors=True)
        for other in folder.parent.glob("*/"):
            if time.time() - other.stat().st_mtime > _OLD_S:
                shutil.rmtree(other, ignore_errors=True)
    return news


_read = ray.remote(num_cpus=0, max_retries=0)(_new_content)
