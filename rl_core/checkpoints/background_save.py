"""Checkpoints written beside training: the loop waits for a snapshot, a thread for the disk."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Protocol

from rl_core.checkpoints.manifest import find_damage
from rl_core.checkpoints.pruning import make_room, prune
from rl_core.checkpoints.store import list_checkpoints, save_checkpoint
from rl_core.config.operations import CheckpointsConfig
from rl_core.errors import last_line
from rl_core.system.atomic import is_disk_full
from rl_core.system.disk_reserve import demand_room
from rl_core.system.words import disk_size
from rl_core.types import SnapshotBytes

_logger = logging.getLogger(__name__)


class Snapshots(Protocol):
    """What a save needs of `Workers`."""

    def snapshot(self) -> SnapshotBytes:
        """Copies all that a checkpoint holds."""

    def write_snapshot(self, folder: Path, *, model_alone: bool = False) -> None:
        """Writes what was copied last into a folder; `model_alone` leaves out a resume's share."""


class BackgroundSave:
    """Takes snapshots, and writes each while training goes on; one at a time.

    A save that fails (a full disk, say) is told in the log and costs that checkpoint alone. Leaving
    the block waits for the last write, so that a run that ends has its last checkpoint.

    Where the disk is full, all that latest and best do without is deleted and the save tried again;
    then the model is saved alone, which can be served and not resumed from.

    Example:
        with BackgroundSave(settings, run.path, workers) as saves:
            saves.snapshot()
            ...  # the step's logs: a checkpoint must never lie ahead of them
            saves.write(step, accuracy)

    Args:
        kept: which checkpoints stay.
        run_folder: `runs/<run_id>`.
        snapshots: copies what a checkpoint holds, and writes the copy.
        min_free_bytes: of the disk, to be left free.
        add_state: called with the folder of a checkpoint that is being written, to put there what
            a resume needs besides; not where the model is saved alone.
        after_save: called in the thread after each write, for what else is to be tidied there.
    """

    def __init__(
        self,
        kept: CheckpointsConfig,
        run_folder: Path,
        snapshots: Snapshots,
        *,
        min_free_bytes: int = 0,
        add_state: Callable[[Path], object] = lambda folder: None,
        after_save: Callable[[], object] = lambda: None,
    ) -> None:
        self._kept = kept
        self._run_folder = run_folder
        self._snapshots = snapshots
        self._min_free_bytes = min_free_bytes
        self._add_state = add_state
        self._after_save = after_save
        self._size: SnapshotBytes
        self._pending: Future[None] | None = None
        self.trouble: str | None = None
        """Why the last step that was to be saved cannot be resumed from, in a sentence."""

    def snapshot(self) -> None:
        """Takes a snapshot once the one before is written and verified: what a save costs the loop.

        Raises:
            OutOfMemory: in the write before, as anything else that no disk explains.
            WorkerDied: likewise.
        """
        self._wait()
        self._size = self._snapshots.snapshot()

    def write(self, step: int, accuracy: float | None, score: float | None = None) -> None:
        """Begins to write the last snapshot as the checkpoint of `step`.

        Returns at once, unless `kept.in_background` is off.

        Args:
            step: of the snapshot.
            accuracy: see `save_checkpoint`.
            score: likewise.
        """
        assert self._pending is None, "the snapshot is being written"
        self._pending = pending = Future[None]()

        def work() -> None:
            try:
                self._save(step, accuracy, score)
                self._tidy()
            except BaseException as error:  # noqa: BLE001  # raised where the write is waited for
                pending.set_exception(error)
            else:
                pending.set_result(None)

        # A daemon, not a pool's thread: a process that must end at once does not wait for it.
        Thread(target=work, name="checkpoint", daemon=True).start()
        if not self._kept.in_background:
            self._wait()

    def __enter__(self) -> BackgroundSave:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._wait()
        except Exception as failure:
            if error is None:
                raise
            _logger.error("the last save failed as well (%s)", last_line(failure))

    def _wait(self) -> None:
        """Waits for the write that is under way; it counts as done even if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _tidy(self) -> None:
        try:
            self._after_save()
        except OSError as error:
            _logger.warning("tidying up after a save failed: %s", error)

    def _save(self, step: int, accuracy: float | None, score: float | None) -> None:
        """Saves a checkpoint, making room first; a full disk costs the checkpoint, not the run."""
        try:
            folder = self._save_what_fits(step, accuracy, score)
        except OSError as error:
            remedy = f": {self._missing_room()}" if is_disk_full(error) else ""
            self.trouble = f"step {step} was not saved ({last_line(error)}){remedy}"
            _logger.error("%s; training goes on", self.trouble)
            return
        damage = find_damage(folder, from_disk=True)
        if damage is not None:
            self.trouble = f"step {step} was saved, but its {damage}"
            _logger.error("%s: training goes on", self.trouble)

    def _save_what_fits(self, step: int, accuracy: float | None, score: float | None) -> Path:
        """Saves a checkpoint, or the model alone, and returns its folder.

        Raises:
            OSError: not even the model alone had room, or the disk fails.
        """
        kept = self._kept
        self._make_room(kept.keep_last, kept.quota_bytes, kept.keep_every)
        save = partial(self._save_unless_full, step, accuracy, score)
        folder = save()
        if folder is None and self._make_room(0, 0, None):
            folder = save()
        if folder is None:
            missing = self._missing_room()
            folder = self._write_checkpoint(step, accuracy, score, model_alone=True)
            self.trouble = f"of step {step} the model alone was saved: {missing}"
            _logger.error("%s; training goes on", self.trouble)
            return folder
        self.trouble = None
        prune(
            self._run_folder,
            keep_last=kept.keep_last,
            quota_bytes=kept.quota_bytes,
            keep_every=kept.keep_every,
            min_free_bytes=self._min_free_bytes,
        )
        return folder

    def _save_unless_full(
        self, step: int, accuracy: float | None, score: float | None
    ) -> Path | None:
        """Saves a checkpoint and returns its folder, or None where the disk filled up."""
        try:
            return self._write_checkpoint(step, accuracy, score, model_alone=False)
        except OSError as error:
            if not is_disk_full(error):
                raise
            _logger.warning("the disk filled up while step %d was saved", step)
            return None

    def _write_checkpoint(
        self, step: int, accuracy: float | None, score: float | None, *, model_alone: bool
    ) -> Path:
        demand_room(self._run_folder)

        def write(folder: Path) -> None:
            self._snapshots.write_snapshot(folder, model_alone=model_alone)
            if not model_alone:
                self._add_state(folder)

        return save_checkpoint(
            self._run_folder, step, write, accuracy, score=score, resumable=not model_alone
        )

    def _make_room(self, keep_last: int, quota_bytes: int, keep_every: int | None) -> bool:
        """Makes room for the snapshot, as far as retention lets it, and says whether it did any."""
        decisions = make_room(
            self._run_folder,
            self._size.model + self._size.state,
            keep_last=keep_last,
            quota_bytes=quota_bytes,
            keep_every=keep_every,
            min_free_bytes=self._min_free_bytes,
        )
        return not all(decision.keep for decision in decisions)

    def _missing_room(self) -> str:
        """Returns what is wrong with the disk and what to do, in words."""
        size, free = self._size, shutil.disk_usage(self._run_folder).free
        resumable = [c.step for c in list_checkpoints(self._run_folder) if c.resumable]
        resumed = f"step {resumable[-1]}" if resumable else "the start"
        return (
            f"a checkpoint takes {disk_size(size.model + size.state)}, {disk_size(free)} are free, "
            f"a resume would go on from {resumed}. Delete other runs or files, or lower "
            "checkpoints.keep_last or storage.rollout_quota_bytes; the next save tries again"
        )
