"""The lease of a run: one spool at a time writes a run's objects, by conditional writes only.

    <url>/locks/<run_id>.json   who writes, from which spool, and a number that keeps rising

No clocks are compared: a process that finds another spool's lease watches it for `patience_s`, and
takes it over if the number does not rise in that time.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from typing import Final

from rl_core.storage.object_store import Conflict, ObjectStore, StoreError, Version

_LEAVE_S: Final = 3.0
"""Seconds that the end waits for a sign of life that is being written."""
_logger = logging.getLogger(__name__)


class LeaseHeldError(ValueError):
    """Another machine is at work on the run."""


class Lease:
    """A run's lease, held within the block, unless another spool takes it over: see `is_lost`.

    `spool` names the local folder that writes the run's objects, among those of all machines. The
    holder gives a sign of life every `beat_s`; after `patience_s` without one, which is longer than
    a store is usually away, others may take the lease.
    """

    def __init__(
        self,
        store: ObjectStore,
        run_id: str,
        spool: str,
        *,
        beat_s: float = 15.0,
        patience_s: float = 60.0,
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._key = f"locks/{run_id}.json"
        self._beat_s = beat_s
        self._patience_s = patience_s
        self._holder = {
            "run_id": run_id,
            "spool": spool,
            "session": uuid.uuid4().hex,
            "host": platform.node(),
            "pid": os.getpid(),
        }
        self._number = 0
        self._version: Version | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self.was_own = False
        """Whether this spool was the last to write the run."""
        self.is_lost = False
        """Whether another spool writes the run now: this one must write nothing more."""
        self.is_kept = False
        """Whether it is not given back: a write of this process may still be on its way."""

    def __enter__(self) -> Lease:
        """Takes the lease; LeaseHeldError if another machine is at work on the run."""
        held_since = 0.0
        seen = None
        while True:
            stored = self._store.read(self._key)
            holder = json.loads(stored[0]) if stored else {"spool": None, "released": True}
            version = stored[1] if stored else None
            is_own = holder["spool"] == self._holder["spool"]
            if not is_own and not holder["released"]:
                now = time.monotonic()
                if seen is None:
                    _logger.info(
                        "run %s was written on %s: looking whether it still is (%.0f s)",
                        self._run_id,
                        holder["host"],
                        self._patience_s,
                    )
                    held_since = now
                    seen = version
                elif version != seen:
                    raise LeaseHeldError(
                        f"another machine, {holder['host']}, is at work on run {self._run_id}: "
                        "wait for it or stop it first"
                    )
                if now - held_since < self._patience_s:
                    time.sleep(min(self._beat_s, self._patience_s) / 5)
                    continue
            if self._write(version):
                self.was_own = is_own
                self._thread.start()
                return self

    def __exit__(self, *_error: object) -> None:
        """Gives the lease back; if the store is gone, others take it when `patience_s` is over."""
        self._closing.set()
        self._thread.join(_LEAVE_S)
        if self.is_lost or self.is_kept or self._thread.is_alive():
            return
        try:
            self._write(self._version, released=True)
        except StoreError as error:
            _logger.warning("the lease of run %s was not given back: %s", self._run_id, error)

    def _beat(self) -> None:
        while not self._closing.wait(self._beat_s):
            with suppress(StoreError):
                if not self._write(self._version):
                    self.is_lost = True
                    _logger.error(
                        "another machine has taken over run %s: nothing more is published here",
                        self._run_id,
                    )
                    return

    def _write(self, expected: Version | None, *, released: bool = False) -> bool:
        """Writes the lease over an expected version; False if another process wrote it."""
        self._number += 1
        text = json.dumps({**self._holder, "number": self._number, "released": released})
        try:
            self._version = self._store.put_if(self._key, text.encode(), expected)
        except Conflict:
            stored = self._store.read(self._key)
            if stored is None or json.loads(stored[0])["session"] != self._holder["session"]:
                return False
            # A write of ours whose reply was lost.
            return self._write(stored[1], released=released)
        return True


def is_written_elsewhere(store: ObjectStore, run_id: str, spool: str) -> bool:
    """Returns whether another spool was the last to write a run."""
    stored = store.read(f"locks/{run_id}.json")
    return stored is not None and json.loads(stored[0])["spool"] != spool
