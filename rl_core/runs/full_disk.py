"""A FULL DISK where a run writes what it can do without: told in words, and the run goes on."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable

from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import is_disk_full
from rl_core.system.disk_reserve import demand_room
from rl_core.system.words import disk_size

_logger = logging.getLogger(__name__)


def write_unless_full(
    run: RunFolder, product: str, write: Callable[[], object], *, remedy: str
) -> bool:
    """Writes a product of a run and says whether that was possible.

    A full disk costs the product; the log and the run's reason say so, and what to do.
    `write` writes the product whole or not at all; `remedy` says how it is made again later.

    Raises:
        OSError: the disk fails otherwise.
    """
    try:
        demand_room(run.path)
        write()
    except OSError as error:
        if not is_disk_full(error):
            raise
        free = shutil.disk_usage(run.path).free
        sentence = (
            f"{product} was not written, the disk of {run.path} is full ({disk_size(free)} free): "
            f"delete other runs or files there, then {remedy}"
        )
        _logger.warning("%s", sentence)
        run.note(sentence)
        return False
    return True
