"""The MIRROR of a run: brought down at the start, then published by a thread, whole at the end.

Nothing waits for the store: while it is slow or gone, training goes on in the spool.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rl_core.config.operations import StorageConfig
from rl_core.resources.token_budgets import BUDGETS_FILE
from rl_core.storage.download import download_run, everything, listing_of
from rl_core.storage.lease import Lease, LeaseHeldError, Timing, is_written_elsewhere
from rl_core.storage.object_store import ObjectStore, StoreError
from rl_core.storage.spool import SHARED, Spool, Stat, files_of
from rl_core.storage.upload import Upload
from rl_core.system.words import disk_size

INTERVAL_S: Final = 2.0
"""Seconds between two looks at what changed."""
END_S: Final = 600.0
"""Seconds that a run that ended well waits for the rest of it to be published."""
FAILED_END_S: Final = 60.0
STOPPED_END_S: Final = 8.0
"""Likewise one that was stopped: whoever stops it may kill it after half a minute."""
_LONGEST_PAUSE_S: Final = 15.0
LAST_OF_DATA: Final = "test.parquet"
LAST_OF_MODEL: Final = "warm_start.json"
"""The files of a data set and of a model that are sent last: with them the folder is whole."""
_logger = logging.getLogger(__name__)


class Mirror:
    """The thread that publishes a run, and what it says when the store is gone.

    Args:
        uploads: the run's folder first.
        lease: of the run.
    """

    def __init__(self, uploads: Sequence[Upload], lease: Lease) -> None:
        self._uploads = uploads
        self._run = uploads[0]
        self._lease = lease
        self._ending = threading.Event()
        self._giving_up = threading.Event()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        for upload in uploads:
            upload.is_stopped = self._is_stopped

    def start(self) -> None:
        """Begins to publish."""
        self._run.note(is_pending=True)
        self._thread.start()

    def end(self, wait_s: float) -> bool:
        """Publishes the rest and says whether all of it is in the store.

        Args:
            wait_s: seconds, at most; what is missing then is told, and sent by the next start here.
        """
        self._ending.set()
        self._thread.join(wait_s)
        self._giving_up.set()
        self._lease.is_kept = self._thread.is_alive() or self._trouble is not None
        left = {} if self._lease.is_lost else self._run.missing()
        if left or self._thread.is_alive():
            _logger.warning(
                "%d files (%s) of run %s are not in %s yet%s: they lie in %s, and the next "
                "command with this storage.root sends them",
                len(left),
                disk_size(sum(stat.size for stat in left.values())),
                self._run.name,
                self._run.store.url,
                f" ({self._trouble})" if self._trouble else "",
                self._run.path,
            )
            return False
        if not self._lease.is_lost:
            self._run.note(is_pending=False)
        return True

    def _is_stopped(self) -> bool:
        return self._giving_up.is_set() or self._lease.is_lost

    def _work(self) -> None:
        pause_s = INTERVAL_S
        while not self._is_stopped():
            is_ending = self._ending.is_set()
            if self._send(everything=is_ending):
                pause_s = INTERVAL_S
                if is_ending:
                    return
            else:
                pause_s = min(2 * pause_s, INTERVAL_S if is_ending else _LONGEST_PAUSE_S)
            (self._giving_up if is_ending else self._ending).wait(pause_s)

    def _send(self, *, everything: bool) -> bool:
        """Publishes what changed, and says whether the store took it."""
        try:
            for upload in self._uploads:
                upload.send(everything=everything)
        except Exception as error:  # noqa: BLE001  # nothing here may end a run
            if self._trouble is None:
                _logger.warning(
                    "not published for now, the run goes on in %s: %s", self._run.path, error
                )
            self._trouble = str(error)
            return False
        if self._trouble is not None:
            _logger.info("%s answers again: all is published", self._run.store.url)
        self._trouble = None
        return True


@contextmanager
def mirrored(
    storage: StorageConfig,
    run_id: str,
    *,
    bring: Callable[[ObjectStore, Spool], Sequence[str]] = lambda store, spool: (),
    timing: Timing | None = None,
) -> Iterator[None]:
    """Publishes a run within the block, from what the store has of it; without a URL does nothing.

    Args:
        storage: where the run is.
        run_id: the run, there or not.
        bring: called once the run is here, for what it needs beside it; returns the folders,
            relative to `storage.root`, that are published with it.
        timing: of the lease.

    Raises:
        ValueError: another machine is at work on the run.
        StoreError: the store does not answer.
    """
    if storage.url is None:
        yield
        return
    store, spool = ObjectStore(storage.url), Spool(storage.root, storage.url)
    with spool.publishing(run_id) as is_alone:
        if not is_alone:  # who publishes the folder here sees what is written in this block
            yield
            return
        with Lease(store, run_id, spool.name(), timing) as lease:
            upload = Upload(store, spool, run_id, f"runs/{run_id}")
            there = listing_of(store, run_id)
            is_here = upload.known.is_whole and (upload.path / "run.json").exists()
            if there and not (lease.was_own and is_here):
                download_run(store, spool, run_id, everything, there)
                upload = Upload(store, spool, run_id, f"runs/{run_id}")
            else:
                upload.adopt(there, is_whole=True)
            upload.known.is_whole = True
            _send_pending(store, spool, run_id)
            mirror = Mirror([upload, shared_upload(store, spool, bring(store, spool))], lease)
            mirror.start()
            wait_s = STOPPED_END_S
            try:
                yield
                wait_s = END_S
            except Exception:
                wait_s = FAILED_END_S
                raise
            finally:
                mirror.end(wait_s)


def shared_upload(store: ObjectStore, spool: Spool, folders: Sequence[str]) -> Upload:
    """Returns the upload of what runs share: only added to, and whole with its last file.

    Args:
        store: where it goes.
        spool: where it lies.
        folders: data sets and models, relative to `storage.root`; evaluations go, too.

    Raises:
        StoreError: the store does not say what it has.
    """

    def look(root: Path) -> dict[str, Stat]:
        found = {
            f"{folder}/{path}": stat
            for folder in (*folders, "evaluations")
            for path, stat in files_of(root / folder).items()
        }
        budgets = root / BUDGETS_FILE
        if budgets.exists():
            found[BUDGETS_FILE] = Stat(budgets.stat().st_size, budgets.stat().st_mtime_ns)
        return dict(sorted(found.items(), key=lambda item: _is_last(item[0])))

    upload = Upload(store, spool, SHARED, "", look=look, deletes=False)
    there = {
        key: entry
        for folder in (*folders, "evaluations")
        for key, entry in store.list(f"{folder}/").items()
    }
    upload.adopt(there, is_whole=False)
    return upload


def _is_last(path: str) -> bool:
    return path.endswith((f"/{LAST_OF_DATA}", f"/{LAST_OF_MODEL}"))


def _send_pending(store: ObjectStore, spool: Spool, run_id: str) -> None:
    """Sends what other runs of this spool could not send when they ended."""
    for name in spool.pending():
        with spool.publishing(name) as is_alone:
            if name == run_id or not is_alone:
                continue
            upload = Upload(store, spool, name, f"runs/{name}")
            try:
                if not is_written_elsewhere(store, name, spool.name()):
                    with Lease(store, name, spool.name()):
                        number = upload.send(everything=True)
                    _logger.info(
                        "%d files of run %s, left from before, are in %s", number, name, store.url
                    )
            except (LeaseHeldError, StoreError) as error:
                _logger.warning("run %s is still not all in %s: %s", name, store.url, error)
                continue
            upload.note(is_pending=False)
