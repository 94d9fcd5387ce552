"""UPLOAD: what changed in the spool goes to the store, so that what is there is whole at any time.

Logs go before the checkpoint that lies ahead of none of them, a checkpoint's files before its
manifest; manifests are deleted before the files that they name. An upload that stops at any point
leaves a run in the store that can be read and resumed.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Final

from rl_core.checkpoints.manifest import MANIFEST
from rl_core.storage.object_store import Entry, ObjectStore
from rl_core.storage.spool import Agreed, Spool, Stat, files_of

CHECKPOINTS: Final = "checkpoints/"
LAST_OF_DATA: Final = "test.parquet"
LAST_OF_MODEL: Final = "warm_start.json"
"""The files of a data set and of a model that are sent last: with them the folder is whole."""
_BYTES_PER_S: Final = 2**20
"""A file that grows (metrics, logs) is sent again no more often than this many bytes allow."""
_logger = logging.getLogger(__name__)


class Upload:
    """A run's folder on its way to the store: what is deleted here is deleted there, too."""

    def __init__(self, store: ObjectStore, spool: Spool, run_id: str) -> None:
        self.store, self.run_id = store, run_id
        self.folder = spool.root / "runs" / run_id
        self.known = spool.read(run_id)
        self.is_stopped: Callable[[], bool] = bool
        """Called before each request: whether to leave the rest."""
        self._spool = spool
        self._num_done = 0
        self._sent_at: dict[str, float] = {}

    def note(self, *, is_pending: bool) -> None:
        """Notes for the next start here whether the store may lack something."""
        self.known.is_pending = is_pending
        self._keep()

    def missing(self) -> dict[str, Stat]:
        """Returns the files that the store lacks, or has otherwise."""
        return self._changed(files_of(self.folder))

    def adopt(self, there: Mapping[str, Entry]) -> None:
        """Takes for known what a listing shows, by path relative to the folder.

        What is not in it is sent again; what is only in it is deleted there.
        """
        for path in [path for path in self.known.files if path not in there]:
            del self.known.files[path]
        for path, entry in there.items():
            unlike_any = Agreed(size=-1, mtime_ns=0, e_tag=entry.e_tag)
            self.known.files.setdefault(path, unlike_any)

    def send(self, *, everything: bool = False) -> int:
        """Sends what changed, deletes what is gone, and returns how many objects that were.

        `everything`: also large files that were sent a moment ago.

        Raises:
            StoreError: the store failed; what was done by then is noted.
        """
        here = files_of(self.folder)
        changed = self._changed(here)
        saved = sorted(path for path in changed if path.startswith(CHECKPOINTS))
        before = self._num_done
        try:
            for path, stat in changed.items():
                is_due = everything or saved or self._is_due(path, stat)
                if is_due and not path.startswith(CHECKPOINTS):
                    self._put(path, stat)
            for step, paths in groupby(saved, checkpoint_of):
                self._send_checkpoint(step, {path: changed[path] for path in paths})
            # A run's folder that is gone as a whole is brought down again, not deleted there.
            if (self.folder / "run.json").exists():
                self._delete([path for path in self.known.files if path not in here])
        finally:
            if self._num_done > before:
                self._keep()
        return self._num_done - before

    def _send_checkpoint(self, step: str, files: Mapping[str, Stat]) -> None:
        manifest = f"{step}/{MANIFEST}"
        if manifest in self.known.files and set(files) != {manifest}:
            self._delete([manifest])  # another checkpoint of the same step
        for path, stat in files.items():
            if path != manifest:
                self._put(path, stat)
        now = {path: s for path, s in files_of(self.folder).items() if checkpoint_of(path) == step}
        if set(self._changed(now)) == {manifest}:  # else it was deleted or replaced meanwhile
            self._put(manifest, now[manifest])
            _logger.debug("%s is in %s", step, self.store.url)
        self._keep()

    def _put(self, path: str, stat: Stat) -> None:
        if self.is_stopped():
            return
        with suppress(FileNotFoundError):  # deleted since: the next pass sees what is there
            e_tag = self.store.put(self._key(path), self.folder / path)
            self._sent_at[path] = time.monotonic()
            self.known.files[path] = Agreed(**stat._asdict(), e_tag=e_tag)
            self._num_done += 1

    def _delete(self, paths: Sequence[str]) -> None:
        if self.is_stopped():
            return
        manifests = [path for path in paths if path.endswith(f"/{MANIFEST}")]
        for some in (manifests, [path for path in paths if path not in manifests]):
            self.store.delete(map(self._key, some))
            for path in some:
                del self.known.files[path]
            self._num_done += len(some)

    def _key(self, path: str) -> str:
        return f"runs/{self.run_id}/{path}"

    def _changed(self, files: Mapping[str, Stat]) -> dict[str, Stat]:
        known = self.known.files
        return {p: stat for p, stat in files.items() if p not in known or known[p].stat != stat}

    def _is_due(self, path: str, stat: Stat) -> bool:
        sent_at = self._sent_at.get(path)
        return sent_at is None or time.monotonic() - sent_at >= stat.size / _BYTES_PER_S

    def _keep(self) -> None:
        self._spool.write(self.run_id, self.known)


class SharedUpload:
    """What runs share, on its way to the store: only added to; a folder's last file makes it whole.

    `folders` are data sets and models, relative to `storage.root`; evaluations go with them.
    """

    def __init__(self, store: ObjectStore, root: Path, folders: Sequence[str]) -> None:
        self.is_stopped: Callable[[], bool] = bool
        self._store, self._root = store, root
        self._folders = (*folders, "evaluations")
        there = {key: x.size for f in self._folders for key, x in store.list(f"{f}/").items()}
        files = self._files()
        self._sent = {key: stat for key, stat in files.items() if there.get(key) == stat.size}

    def send(self) -> None:
        """Sends what the store lacks and what changed since."""
        for key, stat in self._files().items():
            if self._sent.get(key) != stat and not self.is_stopped():
                with suppress(FileNotFoundError):  # deleted since
                    self._store.put(key, self._root / key)
                    self._sent[key] = stat

    def _files(self) -> dict[str, Stat]:
        found = {
            f"{folder}/{path}": stat
            for folder in self._folders
            for path, stat in files_of(self._root / folder).items()
        }
        last = (f"/{LAST_OF_DATA}", f"/{LAST_OF_MODEL}")
        return dict(sorted(found.items(), key=lambda item: item[0].endswith(last)))


def checkpoint_of(path: str) -> str:
    """Returns the checkpoint that a path below `CHECKPOINTS` belongs to."""
    return "/".join(path.split("/")[:2])
