"""DAMAGED checkpoints: set aside as they lie, for whoever wants to look at them or repair them.

checkpoints/damaged_step_000100/  never loaded, never counted; deleted where room is needed
"""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from rl_core.system.atomic import remove_folder
from rl_core.system.words import disk_size

_DAMAGED = re.compile(r"damaged_step_(\d{6,})")
_logger = logging.getLogger(__name__)


def set_aside(checkpoint: Path, damage: str) -> None:
    """Renames a damaged checkpoint, which a save of the same step would replace, and says why.

    Args:
        checkpoint: its folder, which its one writer alone may rename.
        damage: what is wrong with it.
    """
    aside = checkpoint.with_name(f"damaged_{checkpoint.name}")
    if aside.exists():
        shutil.rmtree(aside)
    checkpoint.rename(aside)
    _logger.warning("%s is damaged (%s): moved to %s", checkpoint.name, damage, aside)


def damaged_folders(checkpoints: Path) -> list[Path]:
    """Returns what was set aside in a folder of checkpoints, by step."""
    paths = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return sorted(
        (path for path in paths if _DAMAGED.fullmatch(path.name)),
        key=lambda path: step_of(path),
    )


def step_of(damaged: Path) -> int:
    """Returns the step whose checkpoint was set aside."""
    return int(damaged.name.rpartition("_")[2])


def size_bytes(folder: Path) -> int:
    """Returns the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def give_up_damaged(checkpoints: Path, excess_bytes: int) -> None:
    """Deletes what was set aside, oldest first, until so many bytes less are taken."""
    for folder in damaged_folders(checkpoints):
        if excess_bytes <= 0:
            return
        size = size_bytes(folder)
        remove_folder(folder)
        excess_bytes -= size
        _logger.warning("%s deleted: its %s are needed", folder.name, disk_size(size))
