"""The SPOOL: a local folder whose files are published to a store, and what of them is there.

    .mirror/<store>/<name>.json   what of `runs/<name>` (or of `shared`) agrees with the store
    .mirror/<store>/<name>.lock   held by the process here that publishes it
    .mirror/spool                 the folder's own name, by which leases know it

All processes work on the local files alone, as they do without a store.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_core.checkpoints.store import checkpoints_folder
from rl_core.system.atomic import locked, open_no_link, write_text_atomically

SHARED: Final = "shared"
"""The name under which data sets, models and evaluations are known; runs have their own."""


class Stat(NamedTuple):
    """What changes when a file does."""

    size: int
    mtime_ns: int


class Agreed(BaseModel):
    """A file as it was, here and there, when both were the same."""

    model_config = ConfigDict(frozen=True)
    size: int
    mtime_ns: int
    e_tag: str | None

    @property
    def stat(self) -> Stat:
        """What the local file looked like."""
        return Stat(self.size, self.mtime_ns)


class Agreement(BaseModel):
    """What of a run is in the store, as this spool knows it."""

    model_config = ConfigDict(extra="forbid")
    is_pending: bool = False
    """Whether it was being published when last heard of: then something may yet be missing."""
    is_whole: bool = False
    """Whether all of it is here: else what is missing here is not to be deleted there."""
    files: dict[str, Agreed] = {}
    """By path, relative to the run's folder."""


@dataclass(frozen=True)
class Spool:
    """A local folder as the working copy of a store."""

    root: Path
    url: str

    @property
    def folder(self) -> Path:
        """Where the mirror keeps what it knows."""
        return self.root / ".mirror" / hashlib.sha256(self.url.encode()).hexdigest()[:12]

    def name(self) -> str:
        """Returns what names this folder among all spools."""
        file = self.root / ".mirror" / "spool"
        with locked(file.parent):
            if not file.exists():
                write_text_atomically(file, uuid.uuid4().hex)
        return file.read_text()

    def read(self, name: str) -> Agreement:
        """Returns what is known of a run; nothing, where that cannot be read."""
        try:
            return Agreement.model_validate_json((self.folder / f"{name}.json").read_bytes())
        except (OSError, ValidationError):
            return Agreement()

    def write(self, name: str, agreement: Agreement) -> None:
        """Notes what is known of a run; a full disk costs a second upload, not the run."""
        with suppress(OSError):
            write_text_atomically(self.folder / f"{name}.json", agreement.model_dump_json())

    def pending(self) -> list[str]:
        """Returns the runs that were being published when last heard of."""
        names = sorted(file.stem for file in self.folder.glob("[!.]*.json"))
        return [name for name in names if name != SHARED and self.read(name).is_pending]

    @contextmanager
    def publishing(self, name: str) -> Iterator[bool]:
        """Yields whether no other process here publishes a run, which then holds for the block."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock_file = open_no_link(self.folder / f"{name}.lock", os.O_WRONLY)
        with os.fdopen(lock_file, "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True


def files_of(folder: Path) -> dict[str, Stat]:
    """Returns the files of a run that are to be published, by path relative to its folder.

    Not those that begin with a dot (locks, temporaries, the reserve), and no links. Checkpoints are
    looked at first: logs that are found after them hold their steps.
    """
    checkpoints = checkpoints_folder(folder)
    found: dict[str, Stat] = {}
    _walk(checkpoints, f"{checkpoints.name}/", found)
    _walk(folder, "", found, without=checkpoints.name)
    return found


def _walk(folder: Path, prefix: str, found: dict[str, Stat], *, without: str | None = None) -> None:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # not there, or not any more
        return
    for entry in entries:
        name = entry.name
        if name.startswith(".") or name == without or entry.is_symlink():
            continue
        with suppress(FileNotFoundError):
            if entry.is_dir():
                _walk(Path(entry.path), f"{prefix}{name}/", found)
            else:
                stat = entry.stat()
                found[f"{prefix}{name}"] = Stat(stat.st_size, stat.st_mtime_ns)
