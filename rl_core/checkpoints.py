"""A CHECKPOINT: saved whole or not at all, found again from the disk, pruned to a quota.

    checkpoints/step_000100/  a Hugging Face model folder; `trainer/` in it is for a resume
    checkpoints/step_000100/checkpoint.json  the manifest: step, accuracy, files with checksums
    checkpoints/latest, best  relative symlinks, for people and `from_pretrained`

What exists is read from the disk each time, never remembered: the pointers are a convenience, and
a crash between a save and their update is repaired by the next save or prune. What the folder of a
step holds is up to the caller; nothing here loads a model.
"""

from __future__ import annotations

import errno
import logging
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rl_core.atomic import locked, new_folder, remove_folder, replace_symlink, sweep_leftovers
from rl_core.manifest import Manifest, find_damage, read_manifest, write_manifest

_STEP_FOLDER = re.compile(r"step_(\d{6,})")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk whose manifest can be read and whose files have their sizes."""

    path: Path
    step: int
    accuracy: float | None
    size_bytes: int
    created_at: str


@dataclass(frozen=True)
class PruningDecision:
    """What happens to one checkpoint, and why."""

    checkpoint: Checkpoint
    keep: bool
    reason: str


def save_checkpoint(
    run_folder: Path, step: int, write: Callable[[Path], None], accuracy: float | None
) -> Path:
    """Saves one checkpoint, moves the pointers, and returns its folder.

    A save that fails or is killed leaves the checkpoints before it and both pointers as they were;
    what a killed one leaves half-written is swept by the next.

    Args:
        run_folder: `runs/<run_id>`.
        step: a checkpoint of the same step is replaced.
        write: fills the folder it is given.
        accuracy: held-out greedy accuracy; `best` moves only to a strictly higher one, and None
            (not measured) is below all.

    Raises:
        OSError: the disk is full or fails; nothing of this save is left.
    """
    folder = _checkpoints_folder(run_folder)
    final = folder / f"step_{step:06d}"
    with locked(folder):
        swept = sweep_leftovers(folder)
        if swept:
            _logger.warning("removed what an interrupted save left: %s", ", ".join(swept))
        with new_folder(final) as temporary:
            with _disk_full_as_os_error(temporary):
                write(temporary)
            write_manifest(temporary, step, accuracy)
        _move_pointers(run_folder)
    return final


def list_checkpoints(run_folder: Path) -> list[Checkpoint]:
    """Returns the checkpoints on the disk by step, without those that miss (parts of) files."""
    return [
        _as_checkpoint(path, manifest)
        for path in _step_folders(run_folder)
        if isinstance(manifest := read_manifest(path), Manifest)
    ]


def latest(run_folder: Path) -> Checkpoint | None:
    """Returns the newest sound checkpoint, every byte verified, or None.

    Damaged ones are skipped, and a warning in the log says which and why.
    """
    for path in reversed(_step_folders(run_folder)):
        damage = find_damage(path)
        if damage is None:
            manifest = read_manifest(path)
            assert isinstance(manifest, Manifest)
            return _as_checkpoint(path, manifest)
        _logger.warning("checkpoint %s is damaged (%s): using the one before it", path.name, damage)
    return None


def best(run_folder: Path) -> Checkpoint | None:
    """Returns the checkpoint of the highest accuracy (the first of equals), or None.

    One whose accuracy was not measured counts below all others.
    """
    return max(
        list_checkpoints(run_folder),
        key=lambda c: float("-inf") if c.accuracy is None else c.accuracy,
        default=None,
    )


def plan_pruning(
    checkpoints: Sequence[Checkpoint],
    *,
    latest_step: int | None,
    best_step: int | None,
    keep_last: int,
    quota_bytes: int,
) -> list[PruningDecision]:
    """Returns what to do with each checkpoint, newest first. Pure.

    Latest and best always stay, even above the quota. Beside them stay the newest `keep_last`, as
    long as all that stays fits into the quota; the first that does not fit ends the row, so that
    what stays has no gaps.

    Args:
        checkpoints: in any order.
        latest_step: the one a resume would load.
        best_step: the one of the highest accuracy.
        keep_last: how many stay beside those two.
        quota_bytes: for all that stay; zero or less leaves room for those two only.
    """
    roles = {
        step: " and ".join(
            name for name, of in (("latest", latest_step), ("best", best_step)) if of == step
        )
        for step in (latest_step, best_step)
    }
    used = sum(c.size_bytes for c in checkpoints if c.step in roles)
    decisions, kept, row_ended = [], 0, False
    for checkpoint in sorted(checkpoints, key=lambda c: c.step, reverse=True):
        if checkpoint.step in roles:
            decisions.append(PruningDecision(checkpoint, True, roles[checkpoint.step]))
            continue
        over_quota = used + checkpoint.size_bytes > quota_bytes
        if kept == keep_last:
            keep, reason = False, f"older than the newest {keep_last} beside latest and best"
        elif over_quota or row_ended:
            keep, row_ended = False, True
            reason = f"over the quota of {_gigabytes(quota_bytes)}"
        else:
            kept += 1
            used += checkpoint.size_bytes
            keep, reason = True, f"number {kept} of the newest {keep_last}, within the quota"
        decisions.append(PruningDecision(checkpoint, keep, reason))
    return decisions


def prune(
    run_folder: Path, *, keep_last: int, quota_bytes: int, dry_run: bool = False
) -> list[PruningDecision]:
    """Deletes the checkpoints that need not stay and returns every decision, newest first.

    Args:
        run_folder: `runs/<run_id>`.
        keep_last: see `plan_pruning`.
        quota_bytes: see `plan_pruning`.
        dry_run: only says what would be done.
    """
    folder = _checkpoints_folder(run_folder)
    if not folder.is_dir():
        return []
    if dry_run:
        return _plan(run_folder, keep_last, quota_bytes)
    with locked(folder):
        sweep_leftovers(folder)
        decisions = _plan(run_folder, keep_last, quota_bytes)
        if decisions:
            _move_pointers(run_folder)
        for decision in decisions:
            if not decision.keep:
                remove_folder(decision.checkpoint.path)
    return decisions


def make_room(
    run_folder: Path, incoming_bytes: int | None, *, keep_last: int, quota_bytes: int
) -> list[PruningDecision]:
    """Prunes BEFORE a save, so that the coming checkpoint fits the quota and the free disk.

    The checkpoint to come will be the latest and today's latest one of the newest `keep_last`, so
    one fewer stays beside today's latest and best. These two are never touched, even where room is
    missing: the save may then fail, and the run goes on with what it has.

    Args:
        run_folder: `runs/<run_id>`.
        incoming_bytes: size of the coming checkpoint; None: that of the newest on the disk.
        keep_last: see `plan_pruning`.
        quota_bytes: for all checkpoints, the coming one included.

    Returns:
        Every decision, newest first.
    """
    checkpoints = list_checkpoints(run_folder)
    if not checkpoints:
        return []
    incoming = checkpoints[-1].size_bytes if incoming_bytes is None else incoming_bytes
    used = sum(c.size_bytes for c in checkpoints)
    free = shutil.disk_usage(_checkpoints_folder(run_folder)).free
    decisions = prune(
        run_folder,
        keep_last=max(keep_last - 1, 0),
        quota_bytes=min(quota_bytes, used + free) - incoming,
    )
    free = shutil.disk_usage(_checkpoints_folder(run_folder)).free
    if free < incoming:
        _logger.warning(
            "the next checkpoint takes about %s but %s are free: saving it may fail",
            _gigabytes(incoming),
            _gigabytes(free),
        )
    return decisions


def _plan(run_folder: Path, keep_last: int, quota_bytes: int) -> list[PruningDecision]:
    """Returns the decisions for what is on the disk; latest is the newest that can be resumed."""
    newest, highest = latest(run_folder), best(run_folder)
    return plan_pruning(
        list_checkpoints(run_folder),
        latest_step=newest.step if newest else None,
        best_step=highest.step if highest else None,
        keep_last=keep_last,
        quota_bytes=quota_bytes,
    )


def _checkpoints_folder(run_folder: Path) -> Path:
    return run_folder / "checkpoints"


def _step_folders(run_folder: Path) -> list[Path]:
    """Returns the checkpoint folders by step, pointers and leftovers excluded."""
    folder = _checkpoints_folder(run_folder)
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(
        (path for path in paths if _STEP_FOLDER.fullmatch(path.name)),
        key=lambda path: int(path.name.removeprefix("step_")),
    )


@contextmanager
def _disk_full_as_os_error(folder: Path) -> Iterator[None]:
    """Turns what libraries raise on a full disk into the OSError that it is.

    safetensors raises its own type with the system's message, torch.save a RuntimeError about file
    positions without a word of the disk: there the free space tells.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        no_space = "No space left on device"
        if no_space in str(error) or shutil.disk_usage(folder).free < 2**20:
            raise OSError(errno.ENOSPC, no_space, str(folder)) from error
        raise


def _as_checkpoint(path: Path, manifest: Manifest) -> Checkpoint:
    return Checkpoint(
        path=path,
        step=manifest.step,
        accuracy=manifest.accuracy,
        size_bytes=manifest.total_bytes,
        created_at=manifest.created_at,
    )


def _move_pointers(run_folder: Path) -> None:
    """Points `latest` and `best` at what they should be, as the disk says."""
    newest, highest = list_checkpoints(run_folder)[-1], best(run_folder)
    assert highest is not None
    for name, checkpoint in (("latest", newest), ("best", highest)):
        link = _checkpoints_folder(run_folder) / name
        if not link.is_symlink() or link.readlink() != Path(checkpoint.path.name):
            replace_symlink(link, checkpoint.path.name)


def _gigabytes(num_bytes: int) -> str:
    return f"{max(num_bytes, 0) / 1e9:.3g} GB"
