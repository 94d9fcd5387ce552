"""The LEASE of a run: one spool at a time writes a run's objects, by conditional writes alone.

    <url>/locks/<run_id>.json   who writes, from which spool, and a number that goes up meanwhile

No clock is compared: who finds a lease that another spool holds watches it for `patience_s`, and
takes it over if it does not move all the while.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
import time
import uuid
from dataclasses import dataclass
from typing import Any, Final

from rl_core.storage.object_store import Conflict, ObjectStore, StoreError, Version, as_json

BEAT_S: Final = 15.0
"""Seconds between two signs of life."""
PATIENCE_S: Final = 60.0
"""Seconds without one after which a lease is nobody's: more than a store's usual hiccup."""
_LEAVE_S: Final = 3.0
"""Seconds for a sign of life that is on its way: after that the store is gone."""
_logger = logging.getLogger(__name__)


class LeaseHeldError(ValueError):
    """Another machine is at work on the run."""


@dataclass(frozen=True)
class Timing:
    """How often a holder moves its lease, and how long others watch one that does not move."""

    beat_s: float = BEAT_S
    patience_s: float = PATIENCE_S


class Lease:
    """A run's lease, held within the block, unless another spool takes it over: see `is_lost`.

    Args:
        store: where the run's objects are.
        run_id: the run.
        spool: names the local folder, on whatever machine, that writes them.
        timing: other times than usual.
    """

    def __init__(
        self, store: ObjectStore, run_id: str, spool: str, timing: Timing | None = None
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._key = lease_key(run_id)
        self._timing = timing or Timing()
        self._own = {
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
        """Whether another spool writes the run now: nothing may be written any more."""
        self.is_kept = False
        """Whether it is not given back: something of this process may still be on its way."""

    def __enter__(self) -> Lease:
        """Takes the lease.

        Raises:
            LeaseHeldError: another machine is at work on the run.
            StoreError: the store does not say.
        """
        held_since, seen = 0.0, None
        while True:
            found = self._store.read(self._key)
            holder: dict[str, Any] = json.loads(found[0]) if found else {}
            version = found[1] if found else None
            is_own = bool(holder) and holder["spool"] == self._own["spool"]
            if holder and not is_own and not holder["released"]:
                now = time.monotonic()
                if seen is None:
                    _logger.info(
                        "run %s was written on %s: looking whether it still is (%.0f s)",
                        self._run_id,
                        holder["host"],
                        self._timing.patience_s,
                    )
                    held_since, seen = now, version
                elif version != seen:
                    raise LeaseHeldError(
                        f"another machine, {holder['host']}, is at work on run {self._run_id}: "
                        "wait for it or stop it first"
                    )
                if now - held_since < self._timing.patience_s:
                    time.sleep(min(self._timing.beat_s, self._timing.patience_s) / 5)
                    continue
            try:
                self._write(version)
            except Conflict:
                if not self._wrote_it():
                    continue
            self.was_own = is_own
            self._thread.start()
            return self

    def __exit__(self, *error: object) -> None:
        """Gives the lease back; if the store is gone, others find it unmoved and take it."""
        self._closing.set()
        self._thread.join(_LEAVE_S)
        if self.is_lost or self.is_kept or self._thread.is_alive():
            return
        try:
            try:
                self._write(self._version, released=True)
            except Conflict:
                if self._wrote_it():
                    self._write(self._version, released=True)
        except (StoreError, Conflict) as failure:
            _logger.warning("the lease of run %s was not given back: %s", self._run_id, failure)

    def _beat(self) -> None:
        while not self._closing.wait(self._timing.beat_s):
            try:
                self._write(self._version)
            except StoreError:
                continue
            except Conflict:
                try:
                    if self._wrote_it():
                        continue
                except StoreError:
                    continue
                self.is_lost = True
                _logger.error(
                    "another machine has taken over run %s, which was out of reach for it too "
                    "long: nothing more is published from here",
                    self._run_id,
                )
                return

    def _write(self, expected: Version | None, *, released: bool = False) -> None:
        self._number += 1
        content = {**self._own, "number": self._number, "released": released}
        self._version = self._store.put_if(self._key, as_json(content), expected)

    def _wrote_it(self) -> bool:
        """Says whether the object is this lease: a write may be done although no reply came."""
        found = self._store.read(self._key)
        if found is None or json.loads(found[0])["session"] != self._own["session"]:
            return False
        self._version = found[1]
        return True


def lease_key(run_id: str) -> str:
    """Returns the name of a run's lease."""
    return f"locks/{run_id}.json"


def is_written_elsewhere(store: ObjectStore, run_id: str, spool: str) -> bool:
    """Says whether another spool was the last to write a run.

    Raises:
        StoreError: the store does not say.
    """
    found = store.read(lease_key(run_id))
    return found is not None and json.loads(found[0])["spool"] != spool
