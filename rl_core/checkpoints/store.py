"""A CHECKPOINT: saved whole or not at all, found again from the disk, verified before it is used.

    checkpoints/step_000100/  a Hugging Face model folder; `trainer/` in it is for a resume
    checkpoints/step_000100/checkpoint.json  the manifest: step, accuracy, files with checksums
    checkpoints/latest, best  relative symlinks, for people and `from_pretrained`

What exists is read from the disk each time, never remembered: the pointers are a convenience, and
a crash between a save and their update is repaired by the next save or prune. The caller decides
what a step's folder holds; nothing here loads a model. Which checkpoints stay: pruning.py.
"""

import logging
import re
import shutil
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from rl_core.checkpoints.manifest import (
    MANIFEST,
    Manifest,
    add_to_manifest,
    find_damage,
    read_manifest,
    write_manifest,
)
from rl_core.system.atomic import (
    TEMPORARY_PREFIX,
    disk_errors_as_os_errors,
    locked,
    new_folder,
    reading,
    replace_symlink,
    sweep_leftovers,
)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk whose manifest can be read and whose files have their sizes."""

    path: Path
    step: int
    accuracy: float | None
    size_bytes: int
    created_at: str
    score: float | None = None


def save_checkpoint(
    run_folder: Path,
    step: int,
    write: Callable[[Path], None],
    accuracy: float | None,
    *,
    score: float | None = None,
    base_sha256: str | None = None,
) -> Path:
    """Saves one checkpoint, moves the pointers, and returns its folder.

    A save that fails or is killed leaves the checkpoints before it and both pointers as they were;
    the next save removes what a killed one wrote. A checkpoint of the same step is replaced.

    `write` fills the folder it is given. `accuracy`, held-out, moves `best`, if it was measured;
    the mean `score` of the same responses decides between equal ones (with a graded reward, all
    accuracies may be 0). `base_sha256` is of the weights that an adapter needs.

    Raises:
        OSError: the disk is full or fails; nothing of this save is left.
    """
    folder = checkpoints_folder(run_folder)
    final = folder / f"step_{step:06d}"
    with locked(folder):
        if swept := sweep_leftovers(folder):
            _logger.warning("removed what an interrupted save left: %s", ", ".join(swept))
        with new_folder(final) as temporary:
            with disk_errors_as_os_errors(temporary):
                write(temporary)
            write_manifest(temporary, step, accuracy, score=score, base_sha256=base_sha256)
        move_pointers(run_folder)
    return final


def add_weights(checkpoint: Path, write: Callable[[Path], None]) -> None:
    """Adds a whole model's weights to a sound checkpoint that holds only an adapter.

    `write` fills the folder that it is given. A failure or a kill leaves a sound checkpoint: files
    of weights come before their index, and the manifest follows.

    Raises:
        OSError: the disk is full or fails.
    """
    folder = checkpoint.parent
    merged = folder / f"{TEMPORARY_PREFIX}{checkpoint.name}"
    with locked(folder):
        sweep_leftovers(folder)
        try:
            with new_folder(merged) as temporary, disk_errors_as_os_errors(folder):
                write(temporary)
            names = sorted(file.name for file in merged.glob("*.safetensors*"))
            for name in names:
                (merged / name).replace(checkpoint / name)
            add_to_manifest(checkpoint, names)
        finally:
            shutil.rmtree(merged, ignore_errors=True)


def list_checkpoints(run_folder: Path) -> list[Checkpoint]:
    """Returns the checkpoints on the disk by step, without those that miss (parts of) files."""
    return [
        _as_checkpoint(path, manifest)
        for path in _step_folders(run_folder)
        if isinstance(manifest := read_manifest(path), Manifest)
    ]


def latest(run_folder: Path) -> Checkpoint | None:
    """Returns the newest sound checkpoint, every byte verified, or None; logs damaged ones."""
    with reading_latest(run_folder) as checkpoint:
        return checkpoint


@contextmanager
def reading_latest(run_folder: Path) -> Iterator[Checkpoint | None]:
    """Yields what `latest` returns, and keeps it from being pruned within the block."""
    for path in reversed(_step_folders(run_folder)):
        with ExitStack() as held:
            try:
                held.enter_context(reading(path))
            except FileNotFoundError:  # pruned a moment ago
                continue
            manifest = read_manifest(path)
            damage = find_damage(path)
            if damage is None and isinstance(manifest, Manifest):
                yield _as_checkpoint(path, manifest)
                return
            _logger.warning(
                "checkpoint %s is damaged (%s): using the one before it", path.name, damage
            )
    yield None


@contextmanager
def reading_sound(folder: Path) -> Iterator[None]:
    """Keeps a checkpoint, every byte verified, from being pruned within the block.

    A model's folder without a manifest is not verified. ValueError if the checkpoint is damaged,
    FileNotFoundError if there is none, or it was pruned a moment ago.
    """
    with reading(folder):
        damage = find_damage(folder) if (folder / MANIFEST).exists() else None
        if damage is not None:
            raise ValueError(f"checkpoint {folder} is damaged: {damage}")
        yield


def find_damaged(run_folder: Path, newest: Checkpoint | None) -> dict[Path, str]:
    """Returns what is wrong with each damaged checkpoint after `newest`, which `latest` skipped."""
    sound = None if newest is None else newest.path
    newer = takewhile(lambda path: path != sound, reversed(_step_folders(run_folder)))
    return {path: damage for path in newer if (damage := find_damage(path)) is not None}


def best(run_folder: Path) -> Checkpoint | None:
    """Returns the run's checkpoint of the highest accuracy; see `best_of`."""
    return best_of(list_checkpoints(run_folder))


def best_of(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """Returns the checkpoint of the highest accuracy, then score, the first of equals, or None."""

    def rank(checkpoint: Checkpoint) -> list[float]:
        measured = (checkpoint.accuracy, checkpoint.score)
        return [float("-inf") if value is None else value for value in measured]

    return max(checkpoints, key=rank, default=None)


def checkpoints_folder(run_folder: Path) -> Path:
    """Returns the folder of a run's checkpoints, whether it exists or not."""
    return run_folder / "checkpoints"


def _step_folders(run_folder: Path) -> list[Path]:
    folder = checkpoints_folder(run_folder)
    paths = folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ()
    return sorted(
        (
            path
            for path in paths
            if re.fullmatch(r"step_(\d{6,})", path.name) and not path.is_symlink()
        ),
        key=lambda path: int(path.name.removeprefix("step_")),
    )


def _as_checkpoint(path: Path, manifest: Manifest) -> Checkpoint:
    return Checkpoint(
        path=path,
        step=manifest.step,
        accuracy=manifest.accuracy,
        score=manifest.score,
        size_bytes=manifest.total_bytes,
        created_at=manifest.created_at,
    )


def move_pointers(run_folder: Path, refused: Container[Path] = ()) -> None:
    """Points `latest` and `best` to the right checkpoints on the disk, but to none in `refused`.

    If the disk is too full even for that, the next save or prune does it.
    """
    checkpoints = [c for c in list_checkpoints(run_folder) if c.path not in refused]
    targets = {"latest": checkpoints[-1] if checkpoints else None, "best": best_of(checkpoints)}
    try:
        for name, checkpoint in targets.items():
            link = checkpoints_folder(run_folder) / name
            if checkpoint is None:
                link.unlink(missing_ok=True)
            elif not link.is_symlink() or link.readlink() != Path(checkpoint.path.name):
                replace_symlink(link, checkpoint.path.name)
    except OSError as error:
        _logger.warning("`latest` and `best` could not be moved: %s", error)
