"""Saves checkpoints during training: the loop waits for a snapshot, a thread for the disk."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

from rl_core.checkpoints.manifest import find_damage
from rl_core.checkpoints.pruning import PruningDecision, prune
from rl_core.checkpoints.store import list_checkpoints, save_checkpoint
from rl_core.config.operations import CheckpointsConfig
from rl_core.errors import last_line
from rl_core.system.atomic import is_disk_full
from rl_core.system.disk_reserve import demand_room
from rl_core.system.waits import Waits
from rl_core.system.words import disk_size

_logger = logging.getLogger(__name__)


class BackgroundSave:
    """Takes snapshots, and writes each while training continues; one at a time.

    If a save fails, the error is logged and only that checkpoint is lost. On a full disk, all
    checkpoints but latest and best are deleted, and the save is tried once more. Leaving the block
    waits for the last write, so that a run that ends has its last checkpoint.

    `take` copies all that a checkpoint holds, and returns the bytes that writing it takes; `write`
    writes the latest copy into a folder; `after_save` is called in the thread after each write.
    `base_sha256` goes into each manifest. `waits` has the snapshot and the write while they last,
    and what is wrong with the last one.

    Example:
        with BackgroundSave(kept, run.path, workers.snapshot, workers.write_snapshot) as saves:
            saves.snapshot()
            ...  # the step's logs: a checkpoint must never lie ahead of them
            saves.write(step, accuracy)
    """

    def __init__(
        self,
        kept: CheckpointsConfig,
        run_folder: Path,
        take: Callable[[], int],
        write: Callable[[Path], None],
        *,
        min_free_bytes: int = 0,
        after_save: Callable[[], object] = lambda: None,
        base_sha256: str | None = None,
        waits: Waits | None = None,
    ) -> None:
        self._kept = kept
        self._run_folder = run_folder
        self._take = take
        self._write = write
        self._min_free_bytes = min_free_bytes
        self._after_save = after_save
        self._base_sha256 = base_sha256
        self._waits = waits or Waits()
        self._size_bytes = 0
        self._pending: Future[None] | None = None
        self.trouble: str | None = None
        """Why no resume is possible from the last save, in a sentence; None if one is possible."""

    def snapshot(self) -> None:
        """Waits for the last write and raises its error, if any; then takes a snapshot."""
        with self._waits.on("save", "a snapshot", "learner"):
            self._wait()
            self._size_bytes = self._take()

    def write(self, step: int, accuracy: float | None, score: float | None = None) -> None:
        """Begins to write the last snapshot; waits for it unless `kept.in_background`."""
        assert self._pending is None, "the snapshot is being written"
        self._pending = pending = Future[None]()

        def work() -> None:
            try:
                with self._waits.on("save", f"step {step}"):
                    self._save(step, accuracy, score)
                try:
                    self._after_save()
                except OSError as error:
                    _logger.warning("tidying up after a save failed: %s", error)
            except BaseException as error:  # noqa: BLE001  # raised by `_wait`
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
        pending = self._pending
        self._pending = None
        if pending is not None:
            pending.result()

    def _save(self, step: int, accuracy: float | None, score: float | None) -> None:
        """Makes room and saves a checkpoint; on a full disk only the checkpoint is lost."""
        trouble = None
        try:
            self._prune(self._kept, self._size_bytes)
            try:
                folder = self._save_checkpoint(step, accuracy, score)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                _logger.warning("the disk filled up while step %d was saved", step)
                none_but_needed = CheckpointsConfig(keep_last=0, quota_bytes=1)
                if all(one.keep for one in self._prune(none_but_needed, self._size_bytes)):
                    raise
                folder = self._save_checkpoint(step, accuracy, score)
            self._prune(self._kept)
            if (damage := find_damage(folder, from_disk=True)) is not None:
                trouble = f"step {step} was saved, but its {damage}"
        except OSError as error:
            remedy = f": {self._missing_room()}" if is_disk_full(error) else ""
            trouble = f"step {step} was not saved ({last_line(error)}){remedy}"
        self.trouble = trouble
        self._waits.trouble("save", trouble)
        if trouble is not None:
            _logger.error("%s; training continues", trouble)

    def _save_checkpoint(self, step: int, accuracy: float | None, score: float | None) -> Path:
        demand_room(self._run_folder)
        return save_checkpoint(
            self._run_folder,
            step,
            self._write,
            accuracy,
            score=score,
            base_sha256=self._base_sha256,
        )

    def _prune(self, kept: CheckpointsConfig, incoming_bytes: int = 0) -> list[PruningDecision]:
        return prune(
            self._run_folder,
            keep_last=kept.keep_last,
            quota_bytes=kept.quota_bytes,
            min_free_bytes=self._min_free_bytes,
            incoming_bytes=incoming_bytes,
        )

    def _missing_room(self) -> str:
        free = shutil.disk_usage(self._run_folder).free
        saved = [checkpoint.step for checkpoint in list_checkpoints(self._run_folder)]
        resumed = f"step {saved[-1]}" if saved else "the start"
        return (
            f"a checkpoint takes {disk_size(self._size_bytes)}, {disk_size(free)} are free, "
            f"a resume would continue from {resumed}. Delete other runs or files, or lower "
            "checkpoints.keep_last or storage.rollout_quota_bytes; the next save tries again"
        )
