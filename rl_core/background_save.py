"""Checkpoints written beside training: the loop waits for a snapshot, a thread for the disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from types import TracebackType

from rl_core.checkpoints import make_room, save_checkpoint
from rl_core.config import CheckpointsConfig
from rl_core.manifest import find_damage

_logger = logging.getLogger(__name__)


class BackgroundSave:
    """Takes snapshots, and writes each while training goes on; one at a time.

    A save that fails (a full disk, say) is told in the log and costs that checkpoint alone. Leaving
    the block waits for the last write, so that a run that ends has its last checkpoint.

    Example:
        with BackgroundSave(settings, run.path, workers.snapshot, workers.write_snapshot) as saves:
            saves.snapshot()
            ...  # the step's logs: a checkpoint must never lie ahead of them
            saves.write(step, accuracy)

    Args:
        kept: which checkpoints stay.
        run_folder: `runs/<run_id>`.
        take_snapshot: copies all that a checkpoint holds.
        write_snapshot: writes what was copied last into a folder.
    """

    def __init__(
        self,
        kept: CheckpointsConfig,
        run_folder: Path,
        take_snapshot: Callable[[], None],
        write_snapshot: Callable[[Path], None],
    ) -> None:
        self._kept = kept
        self._run_folder = run_folder
        self._take_snapshot = take_snapshot
        self._write_snapshot = write_snapshot
        self._pending: Future[None] | None = None

    def snapshot(self) -> None:
        """Takes a snapshot once the one before is written and verified: what a save costs the loop.

        Raises:
            OutOfMemory: in the write before, as anything else that no disk explains.
            WorkerDied: likewise.
        """
        self._wait()
        self._take_snapshot()

    def write(self, step: int, accuracy: float | None) -> None:
        """Begins to write the last snapshot as the checkpoint of `step`.

        Returns at once, unless `kept.in_background` is off.

        Args:
            step: of the snapshot.
            accuracy: see `save_checkpoint`.
        """
        assert self._pending is None, "the snapshot is being written"
        self._pending = pending = Future[None]()

        def work() -> None:
            try:
                self._save(step, accuracy)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._wait()
        except Exception as failure:
            if error is None:
                raise
            _logger.error("the last save failed as well (%s)", _last_line(failure))

    def _wait(self) -> None:
        """Waits for the write that is under way; it counts as done even if it failed."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def _save(self, step: int, accuracy: float | None) -> None:
        """Saves a checkpoint, making room first; a full disk costs the checkpoint, not the run."""
        kept = self._kept
        try:
            make_room(
                self._run_folder, None, keep_last=kept.keep_last, quota_bytes=kept.quota_bytes
            )
            folder = save_checkpoint(self._run_folder, step, self._write_snapshot, accuracy)
        except OSError as error:
            _logger.error("step %d was not saved (%s): training goes on", step, _last_line(error))
            return
        damage = find_damage(folder, from_disk=True)
        if damage is not None:
            _logger.error("step %d was saved, but its %s: training goes on", step, damage)


def _last_line(error: Exception) -> str:
    """Returns what an error says: one of another process carries its whole traceback before."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
