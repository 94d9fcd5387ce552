"""The reserve: disk blocks that a run holds, and gives up so that it can still say why it ends.

Only last words may use what it frees: run.json, log.txt and metrics lines. Anything larger takes
the reserve back first (`demand_room`), or is not written.
"""

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from rl_core.system.atomic import is_disk_full, open_own

RESERVE: Final = ".reserve"
RESERVE_BYTES: Final = 8 * 2**20


def hold_reserve(run_folder: Path) -> bool:
    """Takes the reserve if the disk has room for it, and says whether it is held."""
    path = run_folder / RESERVE
    was_released = path.exists()
    try:
        with open_own(path, "r+") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, RESERVE_BYTES)
            except OSError:
                file.truncate(0)
                raise
    except PermissionError:
        raise
    except OSError:
        if not was_released:
            path.unlink(missing_ok=True)
        return False
    return True


def demand_room(run_folder: Path) -> None:
    """Raises the OSError of a full disk if the reserve was given up and cannot be taken back."""
    path = run_folder / RESERVE
    if path.exists() and path.stat().st_size == 0 and not hold_reserve(run_folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run_folder))


def write_last_words(run_folder: Path, write: Callable[[], None]) -> None:
    """Calls `write`; if the disk is full, gives up the reserve, if any, and calls it again."""
    try:
        write()
    except OSError as error:
        if not (is_disk_full(error) and _release(run_folder / RESERVE)):
            raise
        write()


def _release(path: Path) -> bool:
    """Frees the reserve's blocks, and says whether there were any; its empty file stays."""
    with suppress(OSError):
        if path.exists() and path.stat().st_size > 0:
            with open_own(path, "r+") as file:
                file.truncate(0)
            return True
    return False
