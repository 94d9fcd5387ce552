"""The spool: a local folder whose files are published to a store, and a record of what it has.

    .mirror/<store>/<run_id>.json   what of the run agrees with the store
    .mirror/<store>/<run_id>.alone/ locked by the process here that publishes it
    .mirror/spool                   the folder's own name, by which leases know it

All processes work only on the local files, as they do without a store.
"""

import hashlib
import os
import stat
import uuid
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ValidationError

from rl_core.checkpoints.store import checkpoints_folder
from rl_core.system.atomic import alone_in, locked, write_text_atomically

CHECKPOINTS: Final = "checkpoints/"


@dataclass(frozen=True)
class Stat:
    """A file here: what changes when it does, and the e-tag of its object if the store has it."""

    size: int
    mtime_ns: int
    e_tag: str | None = field(default=None, compare=False)


class Agreement(BaseModel, extra="forbid"):
    """What this spool knows to be in the store of a run."""

    is_pending: bool = False
    """Whether it was being published: unless a process does so now, the store may lack some."""
    is_whole: bool = False
    """True if the spool has the whole run; if not, nothing is deleted in the store."""
    files: dict[str, Stat] = {}
    """The files that are the same here and there, by path relative to the run's folder."""


@dataclass(frozen=True)
class Spool:
    """A local folder as the working copy of a store."""

    root: Path
    url: str

    @property
    def folder(self) -> Path:
        """Holds what is known of this store."""
        return self.root / ".mirror" / hashlib.sha256(self.url.encode()).hexdigest()[:12]

    def name(self) -> str:
        """Returns what names this folder among all spools."""
        file = self.root / ".mirror" / "spool"
        with locked(file.parent):
            if not file.exists():
                write_text_atomically(file, uuid.uuid4().hex)
        return file.read_text()

    def read(self, run_id: str) -> Agreement:
        """Returns what is known of a run: nothing, if that cannot be read."""
        with suppress(OSError, ValidationError):
            return Agreement.model_validate_json((self.folder / f"{run_id}.json").read_bytes())
        return Agreement()

    def write(self, run_id: str, agreement: Agreement) -> None:
        """Notes what is known of a run; if the disk is full, files are only sent a second time."""
        with suppress(OSError):
            write_text_atomically(self.folder / f"{run_id}.json", agreement.model_dump_json())

    def pending(self) -> list[str]:
        """Returns the runs that were being published, see `Agreement.is_pending`."""
        run_ids = sorted(file.stem for file in self.folder.glob("[!.]*.json"))
        return [run_id for run_id in run_ids if self.read(run_id).is_pending]

    def publishing(self, run_id: str) -> AbstractContextManager[bool]:
        """Yields whether no other process here publishes a run, which then holds for the block."""
        lock = self.folder / f"{run_id}.alone"
        lock.mkdir(parents=True, exist_ok=True)
        return alone_in(lock, wait=False)


def files_of(folder: Path) -> dict[str, Stat]:
    """Returns the files of a run that are to be published, by path relative to its folder.

    No links, locks, temporaries or reserve (which begin with a dot). Checkpoints are looked at
    first: logs that are found after them hold their steps.
    """
    checkpoints = checkpoints_folder(folder)
    files = dict[str, Stat]()
    for top in (checkpoints, folder):
        for parent, folders, names in os.walk(top):
            below = [name for name in folders if not name.startswith(".")]
            folders[:] = [name for name in below if f"{parent}/{name}" != str(checkpoints)]
            for path in (f"{parent}/{name}" for name in names if not name.startswith(".")):
                with suppress(FileNotFoundError):
                    info = os.lstat(path)  # thousands of files, every other second
                    if stat.S_ISREG(info.st_mode):
                        name = path.removeprefix(f"{folder}/")
                        files[name] = Stat(info.st_size, info.st_mtime_ns)
    return files


def checkpoint_of(path: str) -> str:
    """Returns the checkpoint that a path below `CHECKPOINTS` belongs to."""
    return "/".join(path.split("/")[:2])
