"""Files between Ray's machines where these share no disk: whoever needs some asks where they lie.

A folder travels to a machine once, in chunks, and is kept there. Whoever sees the same files at the
same path takes these, and a file that is to be written goes to the driver's disk where that is in
sight, else to the machine's own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import queue
import shutil
import socket
import tempfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rl_core.checkpoints.manifest import MANIFEST, RESUME_FOLDER, Manifest, read_manifest
from rl_core.checkpoints.retention import gigabytes
from rl_core.errors import RAY, WorkerDied, first_line
from rl_core.system.atomic import (
    alone_in,
    disk_full_as_os_error,
    is_disk_full,
    locked,
    new_folder,
    reading,
    remove_folder,
    sweep_leftovers,
)

CHUNK_BYTES: Final = 16 * 2**20
_CHUNKS_AHEAD: Final = 2
"""Of the one that is waited for: so many lie in Ray's memory."""
_KEPT_FOLDERS: Final = 4
"""Copies on a machine, from which on those used longest ago make room for new ones."""
_GIVING: Final = "giving"
"""Ray's concurrency group, a thread of the actor."""
_logger = logging.getLogger(__name__)


def cache_folder() -> Path:
    """Returns where this machine keeps what the driver's disk would hold if it were in sight."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "countdown-train"


def on_node(node: str) -> NodeAffinitySchedulingStrategy:
    """Returns the option of a task that has it run on a machine, by Ray's id of it, or fail."""
    return NodeAffinitySchedulingStrategy(node, soft=False)


def here(place: Path | Folder | NodeFile) -> Path:
    """Returns where something lies on this machine, having brought it here if need be."""
    return place if isinstance(place, Path) else place.here()


@dataclass(frozen=True)
class NodeFile:
    """A file to write: on the driver's disk where a machine sees that, else on its own."""

    path: Path
    """On the driver's disk."""
    mark: Path
    """A file of the driver's, with a name that no other has: who sees it sees its disk."""
    own: Path
    """On another machine, below `cache_folder`."""

    def here(self) -> Path:
        """Returns where this machine writes it; parent folders are made."""
        if self.mark.is_file():
            return self.path
        path = cache_folder() / self.own
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class _File(NamedTuple):
    path: str
    """Relative to the folder, with forward slashes."""
    bytes: int
    content: str
    """Its checksum if the folder has a manifest, else when it was written, in nanoseconds."""


@dataclass(frozen=True)
class Folder:
    """A folder to read on any machine."""

    path: Path
    node: str
    """Ray's id of the machine where it lies; empty: on none of Ray's."""
    files: tuple[_File, ...]
    has_checksums: bool

    @classmethod
    def of(cls, path: Path, node: str) -> Folder:
        """Returns a model's folder, or a checkpoint's, that lies on this machine."""
        manifest = read_manifest(path)
        if isinstance(manifest, Manifest):
            files = [_File(file.path, file.bytes, file.crc32) for file in manifest.files]
            files.append(_facts(path, path / MANIFEST))
        else:
            found = (file for file in path.rglob("*") if file.is_file())
            files = [_facts(path, file) for file in found if not _is_hidden(file, path)]
        return cls(path, node, tuple(sorted(files)), isinstance(manifest, Manifest))

    def model_alone(self) -> Folder:
        """Returns it without what only a learner that resumes needs of a checkpoint."""
        files = tuple(file for file in self.files if not file.path.startswith(RESUME_FOLDER))
        return Folder(self.path, self.node, files, self.has_checksums)

    def here(self, chunks: Iterator[bytes] | None = None) -> Path:
        """Returns where it lies on this machine; a copy stays there while this process lives.

        Args:
            chunks: its content, see `chunks`; by default asked of the machine where it lies.

        Raises:
            OSError: the disk is full or fails.
            ValueError, WorkerDied: it cannot be had from where it lies, see `bring`.
        """
        if self._is_at_its_path():
            return self.path
        copies = cache_folder() / "folders"
        with locked(copies):
            sweep_leftovers(copies)
            copy = copies / self._key()
            if copy.is_dir():
                os.utime(copy)
            else:
                self._copy_to(copy, chunks)
            _held.enter_context(reading(copy))
        return copy / self.path.name

    def bring(self, target: Path, chunks: Iterator[bytes] | None = None) -> None:
        """Copies all files into a folder that exists.

        Raises:
            OSError: the disk is full or fails.
            WorkerDied: the machine where it lies is gone.
            ValueError: the files are not what they were.
        """
        try:
            self._receive(target, self._fetched() if chunks is None else chunks)
        except RayTaskError as error:
            raise ValueError(f"{self.path} could not be read: {first_line(error.cause)}") from error
        except RayError as error:
            lost = f"the machine that holds {self.path} is gone ({first_line(error)})"
            raise WorkerDied(RAY, lost) from error

    def chunks(self) -> Iterator[bytes]:
        """Yields what its files hold, one after the other, where it lies."""
        for name, offset, num_bytes in self._pieces():
            yield _piece(self.path / name, offset, num_bytes)

    def drop(self) -> None:
        """Deletes it where it lies, soon."""
        _drop.options(scheduling_strategy=on_node(self.node)).remote(self.path)

    def _is_at_its_path(self) -> bool:
        try:
            found = Folder.of(self.path, self.node)
        except OSError:
            return False
        return set(self.files) <= set(found.files)

    def _key(self) -> str:
        return hashlib.sha256(json.dumps(self.files).encode()).hexdigest()[:16]

    def _copy_to(self, copy: Path, chunks: Iterator[bytes] | None) -> None:
        num_bytes = sum(file.bytes for file in self.files)
        _logger.info("fetching %s (%s) from another machine", self.path, gigabytes(num_bytes))
        make_room_for_copy(copy.parent, num_bytes)
        try:
            with new_folder(copy) as temporary:
                (temporary / self.path.name).mkdir()
                self.bring(temporary / self.path.name, chunks)
        except OSError as error:
            if is_disk_full(error):
                raise _no_room(copy.parent, f"a copy of {self.path}", num_bytes) from error
            raise

    def _receive(self, target: Path, chunks: Iterator[bytes]) -> None:
        for file in self.files:
            path, left, checksum = target / file.path, file.bytes, 0
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as written:
                while left:
                    chunk = next(chunks)
                    written.write(chunk)
                    left, checksum = left - len(chunk), zlib.crc32(chunk, checksum)
            is_file_of_manifest = self.has_checksums and file.path != MANIFEST
            if is_file_of_manifest and f"{checksum:08x}" != file.content:
                raise ValueError(f"{self.path / file.path} has other content than was saved")

    def _pieces(self) -> Iterator[tuple[str, int, int]]:
        """Yields file, offset and length of each chunk."""
        for file in self.files:
            for offset in range(0, file.bytes, CHUNK_BYTES):
                yield file.path, offset, min(CHUNK_BYTES, file.bytes - offset)

    def _fetched(self) -> Iterator[bytes]:
        """Yields the same as `chunks` on another machine, asking for a few ahead."""
        read, asked = _read.options(scheduling_strategy=on_node(self.node)), deque[Any]()
        for name, offset, num_bytes in self._pieces():
            asked.append(read.remote(self.path / name, offset, num_bytes))
            if len(asked) > _CHUNKS_AHEAD:
                yield ray.get(asked.popleft())
        while asked:
            yield ray.get(asked.popleft())


_held = ExitStack()
"""Keeps the copies that this process uses from being deleted, until it ends."""


class Staging:
    """Where a process writes a folder for a disk that is not in sight: on its own machine's."""

    def __init__(self) -> None:
        self._folder = ExitStack()

    def write(self, final: Path, write: Callable[[Path], object]) -> Folder | None:
        """Has a folder written: `final` itself if it is here, else one to be brought from here.

        Args:
            final: an empty folder on the driver's disk, with a name that no other has.
            write: fills a folder.

        Raises:
            OSError: the disk is full or fails. A full disk of this machine is not told as one: to
                delete checkpoints on the driver's would not help.
        """
        if final.is_dir():
            write(final)
            return None
        self._folder.close()
        parent = cache_folder() / "checkpoints"
        with locked(parent):
            _sweep_staged(parent)
            folder = Path(tempfile.mkdtemp(dir=parent))
            self._folder.callback(shutil.rmtree, folder, ignore_errors=True)
            self._folder.enter_context(reading(folder))
        try:
            with disk_full_as_os_error(folder):
                write(folder)
        except OSError as error:
            self._folder.close()
            if is_disk_full(error):
                raise _no_room(parent, "a checkpoint on its way") from error
            raise
        return Folder.of(folder, ray.get_runtime_context().get_node_id())


def _sweep_staged(parent: Path) -> None:
    """Deletes what killed processes left."""
    for folder in parent.glob("*/"):
        with alone_in(folder, wait=False) as is_orphan:
            if is_orphan:
                shutil.rmtree(folder, ignore_errors=True)


def make_room_for_copy(copies: Path, num_bytes: int) -> None:
    """Deletes copies that nobody uses, from the one used longest ago, as far as need be."""
    kept = sorted(copies.glob("*/"), key=lambda copy: copy.stat().st_mtime)
    for i, copy in enumerate(kept):
        has_room = shutil.disk_usage(copies).free > num_bytes
        if has_room and len(kept) - i < _KEPT_FOLDERS:
            return
        with alone_in(copy, wait=False) as is_unused:
            if is_unused:
                remove_folder(copy)


def _no_room(folder: Path, what: str, num_bytes: int | None = None) -> OSError:
    """Returns an error in words, without the number that says that the driver's disk is full."""
    takes = "" if num_bytes is None else f" of {gigabytes(num_bytes)}"
    return OSError(
        f"the disk of {socket.gethostname()} has no room for {what}{takes}: {folder} has "
        f"{gigabytes(shutil.disk_usage(folder).free)} free; make room there, or set XDG_CACHE_HOME "
        "for its `ray start`"
    )


def _facts(folder: Path, file: Path) -> _File:
    found = file.stat()
    return _File(file.relative_to(folder).as_posix(), found.st_size, str(found.st_mtime_ns))


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _piece(file: Path, offset: int, num_bytes: int) -> bytes:
    """Runs where the file lies."""
    with file.open("rb") as opened:
        opened.seek(offset)
        read = opened.read(num_bytes)
    if len(read) < num_bytes:
        raise ValueError(f"{file} has no longer {offset + num_bytes} bytes")
    return read


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


_read: Any = ray.remote(num_cpus=0, max_retries=0)(_piece)
_drop = ray.remote(num_cpus=0, max_retries=0)(_remove)


class Handover:
    """Folders of a driver that is on none of Ray's machines, given to one of these.

    Args:
        node: Ray's id of the machine.
    """

    def __init__(self, node: str) -> None:
        actor = ray.remote(num_cpus=0, concurrency_groups={_GIVING: 1})(_Receiver)
        self._receiver: Any = actor.options(scheduling_strategy=on_node(node)).remote()
        # As long as the receiver lives, its copies are not deleted.
        self._given: dict[Path, Folder] = {}

    def __call__(self, folder: Folder) -> Folder:
        """Returns the folder as it lies there: sent, unless it is there, or in sight, already.

        Raises:
            OSError: no room there.
            WorkerDied: the machine is gone.
        """
        if folder.path not in self._given:
            try:
                self._given[folder.path] = self._give(folder)
            except RayTaskError as error:
                if isinstance(error.cause, Exception):  # its own message is a whole traceback
                    raise error.cause from error
                raise
            except (RayError, ConnectionError) as error:
                lost = f"the machine that was to have {folder.path} is gone ({first_line(error)})"
                raise WorkerDied(RAY, lost) from error
        return self._given[folder.path]

    def _give(self, folder: Folder) -> Folder:
        taken: Future[Folder] = self._receiver.take.remote(folder).future()
        if self._receiver.is_wanting.remote().future().result():
            for chunk in folder.chunks():
                given = self._receiver.give.remote(chunk).future()
                wait([given, taken], return_when=FIRST_COMPLETED)
                if taken.done():  # it has failed
                    break
        return taken.result()


class _Receiver:
    """Takes folders in one thread, chunk by chunk as they are given in another."""

    def __init__(self) -> None:
        self._chunks: queue.Queue[bytes] = queue.Queue(maxsize=1)
        self._is_wanting: queue.Queue[bool] = queue.Queue()

    def take(self, folder: Folder) -> Folder:
        was_wanting = False

        def wanted() -> Iterator[bytes]:
            nonlocal was_wanting
            was_wanting = True
            self._is_wanting.put(True)
            yield from iter(self._chunks.get, None)

        try:
            path = folder.here(wanted())
        finally:
            if not was_wanting:
                self._is_wanting.put(False)
        return Folder.of(path, ray.get_runtime_context().get_node_id())

    @ray.method(concurrency_group=_GIVING)  # type: ignore[untyped-decorator]  # Ray's
    def is_wanting(self) -> bool:
        return self._is_wanting.get()

    @ray.method(concurrency_group=_GIVING)  # type: ignore[untyped-decorator]  # Ray's
    def give(self, chunk: bytes) -> None:
        self._chunks.put(chunk)
