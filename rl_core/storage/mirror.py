"""The mirror of a run: downloaded at the start, uploaded by a thread.

Every state of the store can be resumed: logs are sent before the checkpoint whose steps they
hold, a checkpoint's files before its manifest; manifests are deleted before the files that they
name. An upload that stops at any point leaves a run that can be read and resumed.

Training never waits for the store: while it is slow or gone, the run continues in the spool.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Final

from rl_core.checkpoints.manifest import MANIFEST
from rl_core.config.operations import StorageConfig
from rl_core.storage.download import download_run, everything, listing_of
from rl_core.storage.lease import Lease, LeaseHeldError, is_written_elsewhere
from rl_core.storage.object_store import ObjectStore, StoreError
from rl_core.storage.spool import CHECKPOINTS, Spool, Stat, checkpoint_of, files_of
from rl_core.system.waits import OF_UPLOAD, Waits
from rl_core.system.words import disk_size

INTERVAL_S: Final = 2.0
"""Seconds between two looks at what changed."""
END_S: Final = 600.0
"""Seconds that a run that ended well waits for the rest of it to be published."""
_FAILED_END_S: Final = 60.0
_STOPPED_END_S: Final = 8.0
"""Grace period of a stopped run: SIGKILL usually follows SIGTERM after half a minute."""
_PAUSE_IN_TROUBLE_S: Final = 15.0
LAST_OF_DATA: Final = "test.parquet"
LAST_OF_MODEL: Final = "warm_start.json"
"""The files of a data set and of a model that are sent last: with them the folder is whole."""
_BYTES_PER_S: Final = 2**20
"""A file that changes (metrics, logs) is sent again no sooner than its size takes at this rate."""
_logger = logging.getLogger(__name__)


class Upload:
    """A run's folder on its way to the store: what is deleted here is deleted there, too."""

    def __init__(self, store: ObjectStore, spool: Spool, run_id: str) -> None:
        self.store = store
        self.run_id = run_id
        self.folder = spool.root / "runs" / run_id
        self.known = spool.read(run_id)
        self.is_stopped: Callable[[], bool] = bool
        """Called before each request: whether to leave the rest."""
        self.waits = Waits(self.folder / OF_UPLOAD)
        self._spool = spool
        self._prefix = f"runs/{run_id}/"
        self._sent_at: dict[str, float] = {}

    def note(self, *, is_pending: bool) -> None:
        """Notes for the next start here whether the store may lack something."""
        self.known.is_pending = is_pending
        self._spool.write(self.run_id, self.known)

    def missing(self, here: Mapping[str, Stat] | None = None) -> dict[str, Stat]:
        """Returns which files, by default all of now, the store lacks or has in another version."""
        files = here or files_of(self.folder)
        return {path: stat for path, stat in files.items() if self.known.files.get(path) != stat}

    def send(self, *, everything: bool = False) -> None:
        """Sends what changed, and deletes what is gone.

        With `everything` also large files that were sent a moment ago. What was done is noted, also
        before a StoreError.
        """
        here = files_of(self.folder)
        changed = self.missing(here)
        saved = sorted(path for path in changed if path.startswith(CHECKPOINTS))
        before = dict(self.known.files)
        try:
            for path, stat in changed.items():
                age_s = time.monotonic() - self._sent_at.get(path, -math.inf)
                is_due = everything or saved or age_s >= stat.size / _BYTES_PER_S
                if is_due and not path.startswith(CHECKPOINTS):
                    self._put(path, stat)
            for step, paths in groupby(saved, checkpoint_of):
                self._send_checkpoint(step, {path: changed[path] for path in paths})
            # A run's folder that is gone as a whole is brought down again, not deleted there.
            if (self.folder / "run.json").exists():
                self._delete([path for path in self.known.files if path not in here])
        finally:
            if self.known.files != before:
                self._spool.write(self.run_id, self.known)

    def _send_checkpoint(self, step: str, files: Mapping[str, Stat]) -> None:
        manifest = f"{step}/{MANIFEST}"
        if manifest in self.known.files and set(files) != {manifest}:
            self._delete([manifest])  # another checkpoint of the same step
        for path, stat in files.items():
            if path != manifest:
                self._put(path, stat)
        left = {path: stat for path, stat in self.missing().items() if checkpoint_of(path) == step}
        if set(left) == {manifest}:  # else it was deleted or replaced meanwhile
            self._put(manifest, left[manifest])
            _logger.debug("%s is in %s", step, self.store.url)
        self._spool.write(self.run_id, self.known)

    def _put(self, path: str, stat: Stat) -> None:
        if self.is_stopped():
            return
        with suppress(FileNotFoundError), self.waits.on("upload", path):  # or deleted since
            e_tag = self.store.put(self._prefix + path, self.folder / path)
            self._sent_at[path] = time.monotonic()
            self.known.files[path] = replace(stat, e_tag=e_tag)

    def _delete(self, paths: Sequence[str]) -> None:
        if self.is_stopped():
            return
        manifests = [path for path in paths if path.endswith(f"/{MANIFEST}")]
        for some in (manifests, [path for path in paths if path not in manifests]):
            self.store.delete(self._prefix + path for path in some)
            for path in some:
                del self.known.files[path]


class SharedUpload:
    """What runs share, on its way to the store, where nothing of it is deleted.

    `folders` are data sets and models, relative to `storage.root`, which their last file makes
    whole; evaluations go with them.
    """

    def __init__(self, store: ObjectStore, root: Path, folders: Sequence[str]) -> None:
        self.is_stopped: Callable[[], bool] = bool
        self.waits = Waits()
        self._store = store
        self._root = root
        self._folders = (*folders, "evaluations")
        there = {key: x.size for f in self._folders for key, x in store.list(f"{f}/").items()}
        self._sent = {k: stat for k, stat in self._files().items() if there.get(k) == stat.size}

    def send(self) -> None:
        """Sends what the store lacks and what changed since."""
        for key, stat in self._files().items():
            if self._sent.get(key) != stat and not self.is_stopped():
                with suppress(FileNotFoundError), self.waits.on("upload", key):  # or deleted since
                    self._store.put(key, self._root / key)
                    self._sent[key] = stat

    def _files(self) -> dict[str, Stat]:
        files = {
            f"{folder}/{path}": stat
            for folder in self._folders
            for path, stat in files_of(self._root / folder).items()
        }
        last = (f"/{LAST_OF_DATA}", f"/{LAST_OF_MODEL}")
        return dict(sorted(files.items(), key=lambda item: item[0].endswith(last)))


class Mirror:
    """The thread that publishes a run from now on."""

    def __init__(self, run: Upload, shared: SharedUpload, lease: Lease) -> None:
        self._run = run
        self._shared = shared
        self._lease = lease
        self._ending = threading.Event()
        self._giving_up = threading.Event()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        run.is_stopped = shared.is_stopped = self._is_stopped
        shared.waits = run.waits
        run.note(is_pending=True)
        self._thread.start()

    def end(self, wait_s: float) -> None:
        """Publishes the rest within `wait_s`; the next start here sends what is missing then."""
        self._ending.set()
        self._thread.join(wait_s)
        self._giving_up.set()
        self._lease.is_kept = self._thread.is_alive() or self._trouble is not None
        left = {} if self._lease.is_lost else self._run.missing()
        if left or self._thread.is_alive():
            _logger.warning(
                "%d files (%s) of run %s are not in %s yet%s: they are in %s, and the next "
                "command with this storage.root sends them",
                len(left),
                disk_size(sum(stat.size for stat in left.values())),
                self._run.run_id,
                self._run.store.url,
                f" ({self._trouble})" if self._trouble else "",
                self._run.folder,
            )
        elif not self._lease.is_lost:
            self._run.note(is_pending=False)

    def _is_stopped(self) -> bool:
        return self._giving_up.is_set() or self._lease.is_lost

    def _work(self) -> None:
        with self._run.waits.written():
            self._publish()

    def _publish(self) -> None:
        while not self._is_stopped():
            is_ending = self._ending.is_set()
            try:
                self._run.send(everything=is_ending)
                self._shared.send()
            except Exception as error:  # noqa: BLE001  # nothing here may end a run
                if self._trouble is None:
                    _logger.warning(
                        "not published now, the run continues in %s: %s", self._run.folder, error
                    )
                self._trouble = str(error)
            else:
                if self._trouble is not None:
                    _logger.info("%s answers again: all is published", self._run.store.url)
                self._trouble = None
                if is_ending:
                    return
            self._run.waits.trouble("upload", self._trouble)
            is_in_trouble = self._trouble is not None and not is_ending
            pause_s = _PAUSE_IN_TROUBLE_S if is_in_trouble else INTERVAL_S
            (self._giving_up if is_ending else self._ending).wait(pause_s)


@contextmanager
def mirrored(
    storage: StorageConfig,
    run_id: str,
    *,
    bring: Callable[[ObjectStore], Sequence[str]] = lambda store: (),
    **timing: float,
) -> Iterator[None]:
    """Brings a run down, if the store has it, and publishes it within the block.

    Without a URL it does nothing. `bring` is called once the run is here, for what it needs besides
    it, and returns the folders below `storage.root` that are published with it; `timing` is the
    lease's. ValueError if another machine is at work on the run, StoreError if the store is gone.
    """
    if storage.url is None:
        yield
        return
    store = ObjectStore(storage.url)
    spool = Spool(storage.root, storage.url)
    with spool.publishing(run_id) as is_alone:
        if not is_alone:  # the process that publishes the folder sees what this block writes
            yield
            return
        with Lease(store, run_id, spool.name(), **timing) as lease:
            upload = Upload(store, spool, run_id)
            there = listing_of(store, run_id)
            is_here = upload.known.is_whole and (upload.folder / "run.json").exists()
            if there and not (lease.was_own and is_here):
                download_run(store, spool, run_id, everything, there)
                upload = Upload(store, spool, run_id)
            else:  # what it lacks is sent again; what only it has is deleted
                known = upload.known.files
                unlike_any = Stat(size=-1, mtime_ns=0)
                upload.known.files = {path: known.get(path, unlike_any) for path in there}
            upload.known.is_whole = True
            _send_pending(store, spool, run_id)
            mirror = Mirror(upload, SharedUpload(store, storage.root, bring(store)), lease)
            wait_s = _STOPPED_END_S
            try:
                yield
                wait_s = END_S
            except Exception:
                wait_s = _FAILED_END_S
                raise
            finally:
                mirror.end(wait_s)


def _send_pending(store: ObjectStore, spool: Spool, run_id: str) -> None:
    for name in spool.pending():
        with spool.publishing(name) as is_alone:
            if name == run_id or not is_alone:
                continue
            upload = Upload(store, spool, name)
            try:
                if not is_written_elsewhere(store, name, spool.name()):
                    number = len(upload.missing())
                    with Lease(store, name, spool.name()):
                        upload.send(everything=True)
                    _logger.info(
                        "%d files of run %s, left from before, are in %s", number, name, store.url
                    )
                upload.note(is_pending=False)
            except (LeaseHeldError, StoreError) as error:
                _logger.warning("run %s is still not all in %s: %s", name, store.url, error)
