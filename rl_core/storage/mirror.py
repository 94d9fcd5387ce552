"""The MIRROR of a run: brought down at the start, then published by a thread, whole at the end.

Nothing waits for the store: while it is slow or gone, training goes on in the spool.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from rl_core.config.operations import StorageConfig
from rl_core.storage.download import download_run, everything, listing_of
from rl_core.storage.lease import (
    USUAL,
    Lease,
    LeaseHeldError,
    Timing,
    is_written_elsewhere,
)
from rl_core.storage.object_store import ObjectStore, StoreError
from rl_core.storage.spool import Spool
from rl_core.storage.upload import SharedUpload, Upload
from rl_core.system.words import disk_size

INTERVAL_S: Final = 2.0
"""Seconds between two looks at what changed."""
END_S: Final = 600.0
"""Seconds that a run that ended well waits for the rest of it to be published."""
FAILED_END_S: Final = 60.0
STOPPED_END_S: Final = 8.0
"""Of one that was stopped: SIGKILL usually follows SIGTERM after half a minute."""
_LONGEST_PAUSE_S: Final = 15.0
_logger = logging.getLogger(__name__)


class Mirror:
    """The thread that publishes a run from now on, and what it says when the store is gone."""

    def __init__(self, run: Upload, shared: SharedUpload, lease: Lease) -> None:
        self._run, self._shared, self._lease = run, shared, lease
        self._ending = threading.Event()
        self._giving_up = threading.Event()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        run.is_stopped = shared.is_stopped = self._is_stopped
        run.note(is_pending=True)
        self._thread.start()

    def end(self, wait_s: float) -> None:
        """Publishes the rest, for so long at most.

        What is missing then is logged, and sent by the next start here.
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
            self._run.send(everything=everything)
            self._shared.send()
        except Exception as error:  # noqa: BLE001  # nothing here may end a run
            if self._trouble is None:
                _logger.warning(
                    "not published for now, the run goes on in %s: %s", self._run.folder, error
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
    bring: Callable[[ObjectStore], Sequence[str]] = lambda store: (),
    timing: Timing = USUAL,
) -> Iterator[None]:
    """Brings a run down, there or not, and publishes it within the block, if there is a URL.

    `bring` is called once the run is here, for what it needs beside it; it returns the folders,
    relative to `storage.root`, that are published with it.

    Raises:
        ValueError: another machine is at work on the run.
        StoreError: the store does not answer.
    """
    if storage.url is None:
        yield
        return
    store, spool = ObjectStore(storage.url), Spool(storage.root, storage.url)
    with spool.publishing(run_id) as is_alone:
        if not is_alone:  # the process that publishes the folder sees what this block writes
            yield
            return
        with Lease(store, run_id, spool.name(), timing) as lease:
            upload = Upload(store, spool, run_id)
            there = listing_of(store, run_id)
            is_here = upload.known.is_whole and (upload.folder / "run.json").exists()
            if there and not (lease.was_own and is_here):
                download_run(store, spool, run_id, everything, there)
                upload = Upload(store, spool, run_id)
            else:
                upload.adopt(there)
            upload.known.is_whole = True
            _send_pending(store, spool, run_id)
            shared = SharedUpload(store, storage.root, bring(store))
            mirror = Mirror(upload, shared, lease)
            wait_s = STOPPED_END_S
            try:
                yield
                wait_s = END_S
            except Exception:
                wait_s = FAILED_END_S
                raise
            finally:
                mirror.end(wait_s)


def _send_pending(store: ObjectStore, spool: Spool, run_id: str) -> None:
    """Sends what other runs of this spool could not send when they ended."""
    for name in spool.pending():
        with spool.publishing(name) as is_alone:
            if name == run_id or not is_alone:
                continue
            upload = Upload(store, spool, name)
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
