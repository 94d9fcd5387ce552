"""UPLOAD: what changed of a run in the spool goes to the store, so that what is there is whole.

Logs go before the checkpoint that lies ahead of none of them, a checkpoint's files before its
manifest; manifests are deleted before the files that they name. Who stops in between, at any point,
leaves a run in the store that can be read and gone on with.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rl_core.checkpoints.manifest import MANIFEST
from rl_core.storage.object_store import Entry, ObjectStore
from rl_core.storage.spool import Agreed, Agreement, Spool, Stat, files_of

CHECKPOINTS: Final = "checkpoints/"
_BYTES_PER_S: Final = 2**20
"""A file that grows (metrics, logs) is sent again no more often than this many bytes allow."""
_logger = logging.getLogger(__name__)


@dataclass
class Upload:
    """A folder of the spool on its way to the store.

    Args:
        store: where it goes.
        spool: where it lies.
        name: under which the spool knows it: a run's.
        folder: relative to the spool and to the store alike: `runs/<run_id>`; empty: all of it.
        look: returns its files, in the order in which they go; by default all, as `files_of`.
        deletes: whether what is gone here goes there, too.
        is_stopped: asked between two files: whether to leave the rest.
    """

    store: ObjectStore
    spool: Spool
    name: str
    folder: str
    look: Callable[[Path], dict[str, Stat]] = files_of
    deletes: bool = True
    is_stopped: Callable[[], bool] = bool
    known: Agreement = field(init=False)
    _sent_at: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.known = self.spool.read(self.name)

    @property
    def path(self) -> Path:
        """The folder in the spool."""
        return self.spool.root / self.folder

    def note(self, *, is_pending: bool) -> None:
        """Notes whether something may be missing in the store, for whoever starts next here."""
        self.known.is_pending = is_pending
        self._keep()

    def missing(self) -> dict[str, Stat]:
        """Returns the files that the store lacks, or has otherwise."""
        return {p: stat for p, stat in self.look(self.path).items() if self._differs(p, stat)}

    def adopt(self, there: Mapping[str, Entry], *, is_whole: bool) -> None:
        """Takes for known what a listing shows.

        Args:
            there: objects by path, relative to the folder.
            is_whole: they are all that there are: what is not among them is sent again, and what
                is neither here nor known is deleted. Else files of the same size count as sent.
        """
        if is_whole:
            for path in [path for path in self.known.files if path not in there]:
                del self.known.files[path]
            for path, entry in there.items():
                unlike_any = Agreed(size=-1, mtime_ns=0, e_tag=entry.e_tag)
                self.known.files.setdefault(path, unlike_any)
            return
        for path, stat in self.look(self.path).items():
            found = there.get(path)
            if path not in self.known.files and found is not None and found.size == stat.size:
                agreed = Agreed(size=stat.size, mtime_ns=stat.mtime_ns, e_tag=found.e_tag)
                self.known.files[path] = agreed

    def send(self, *, everything: bool = False) -> int:
        """Sends what changed, deletes what is gone, and returns how many objects that were.

        Args:
            everything: also of large files that were sent a moment ago.

        Raises:
            StoreError: the store failed; what was done by then is noted.
        """
        there = self.look(self.path)
        changed = {path: stat for path, stat in there.items() if self._differs(path, stat)}
        saved = _by_checkpoint(changed)
        number = 0
        try:
            for path, stat in changed.items():
                is_due = everything or bool(saved) or self._is_due(path, stat)
                if not path.startswith(CHECKPOINTS) and is_due:
                    number += self._send(path, stat)
            for folder, files in saved.items():
                number += self._send_checkpoint(folder, files)
            # A folder that was removed as a whole is no wish to lose the run.
            is_here = (self.path / "run.json").exists()
            if self.deletes and is_here and not self.is_stopped():
                number += self._delete(path for path in self.known.files if path not in there)
        finally:
            if number:
                self._keep()
        return number

    def _send_checkpoint(self, folder: str, files: Mapping[str, Stat]) -> int:
        manifest = f"{folder}{MANIFEST}"
        number = 0
        if manifest in self.known.files and set(files) != {manifest}:
            number += self._delete([manifest])  # another checkpoint of the same step
        for path, stat in files.items():
            if path != manifest:
                number += self._send(path, stat)
        now = {path: s for path, s in self.look(self.path).items() if path.startswith(folder)}
        lacking = {path for path, stat in now.items() if self._differs(path, stat)}
        if lacking == {manifest}:  # else it was deleted or replaced meanwhile: see the next pass
            number += self._send(manifest, now[manifest])
            _logger.debug("%s is in %s", folder.rstrip("/"), self.store.url)
        self._keep()
        return number

    def _send(self, path: str, stat: Stat) -> int:
        if self.is_stopped():
            return 0
        try:
            e_tag = self.store.put(self._key(path), self.path / path)
        except FileNotFoundError:  # deleted since: the next pass sees what is there
            return 0
        self._sent_at[path] = time.monotonic()
        self.known.files[path] = Agreed(size=stat.size, mtime_ns=stat.mtime_ns, e_tag=e_tag)
        return 1

    def _delete(self, paths: Iterable[str]) -> int:
        gone = list(paths)
        manifests = [path for path in gone if path.endswith(f"/{MANIFEST}")]
        for some in (manifests, [path for path in gone if path not in manifests]):
            self.store.delete(map(self._key, some))
            for path in some:
                del self.known.files[path]
        return len(gone)

    def _key(self, path: str) -> str:
        return f"{self.folder}/{path}" if self.folder else path

    def _differs(self, path: str, stat: Stat) -> bool:
        agreed = self.known.files.get(path)
        return agreed is None or agreed.stat != stat

    def _is_due(self, path: str, stat: Stat) -> bool:
        sent_at = self._sent_at.get(path)
        return sent_at is None or time.monotonic() - sent_at >= stat.size / _BYTES_PER_S

    def _keep(self) -> None:
        self.spool.write(self.name, self.known)


def _by_checkpoint(paths: Mapping[str, Stat]) -> dict[str, dict[str, Stat]]:
    """Returns the files of each checkpoint, by its folder, oldest first."""
    found: dict[str, dict[str, Stat]] = {}
    for path in sorted(path for path in paths if path.startswith(CHECKPOINTS)):
        parts = path.split("/", 2)
        if len(parts) == 3:  # what else lies there is not a checkpoint's
            found.setdefault(f"{parts[0]}/{parts[1]}/", {})[path] = paths[path]
    return found
