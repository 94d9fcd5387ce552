"""The locks of a run: one process at a time works on it; a lock vanishes with its process."""

import fcntl
import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import datetime
from io import FileIO
from pathlib import Path
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.runs.metrics_log import utc_now
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import open_own, refuse_foreign, try_lock

_OWNER: Final = ".owner"
_TRAINER: Final = ".trainer"
_logger = logging.getLogger(__name__)


@contextmanager
def started(config: RunConfig) -> Iterator[RunFolder]:
    """Locks a run for the block and records its start; ValueError if another process has it.

    The lock comes first, so a refused start changes nothing in an active run.
    """
    assert config.run_id is not None, "choose_run has named it"
    run = RunFolder.under(config.storage.root, config.run_id)
    run.make()
    with owned(run):
        yield RunFolder.create(config)


def owned(run: RunFolder) -> AbstractContextManager[None]:
    """Locks a run for the block; ValueError if another process is at work on it."""
    return _held(run.path / _OWNER, wait_s=2.0)


def training(run: RunFolder, *, wait_s: float) -> AbstractContextManager[None]:
    """Locks a run's training; ValueError if another trainer still has it after `wait_s`."""
    return _held(run.path / _TRAINER, wait_s=wait_s)


def close_lost_runs(root: Path) -> None:
    """Closes all runs below `storage.root` that lost their process, see `close_if_lost`."""
    for run in RunFolder.all_under(root):
        close_if_lost(run)


def close_if_lost(run: RunFolder) -> None:
    """Writes `interrupted` into the record of a run that says `running` but lost its process.

    A run of another machine, whose lock may not be visible here, is left unchanged.
    """
    with suppress(OSError, ValueError):
        if run.read().status != "running":
            return
        refuse_foreign(run.path)  # its owner may hold its locks for ever
        with _if_free(run) as owner:
            is_ours = owner is not None and owner.read().decode() == platform.node()
            if is_ours and run.read().status == "running":
                run.update(
                    status="interrupted",
                    reason="its process is gone (killed?); the same command, or "
                    f"run_id={run.run_id}, resumes",
                    next_step=f"the same command continues from step {run.last_saved()}",
                    finished_at=utc_now(),
                    steps=run.metrics.last_step(),
                    timings_s=time_of_killed(run),
                )


def time_of_killed(run: RunFolder) -> dict[str, float]:
    """Returns seconds by stage to add for a run whose process was killed within a stage."""
    record = run.read()
    started = datetime.fromisoformat(record.attempts[-1].started_at).timestamp()
    log = run.path / "log.txt"
    known = sum(record.timings_s.values()) if len(record.attempts) == 1 else 0.0
    until = log.stat().st_mtime if log.exists() else started
    return {"the stage that was killed": max(0.0, until - started - known)}


def is_free(run: RunFolder) -> bool:
    """Returns whether no process is at work on a run, and leaves its lock as it is."""
    try:
        with _if_free(run):
            return True
    except OSError:
        return False


def owner_of(run: RunFolder) -> int | None:
    """Returns the process of this machine that is at work on a run; None if there is none here.

    The kernel's own list of locks says it, and the process's open files: a file could name any
    process, and a link in a stranger's run could lead to a lock of another program.
    """
    with suppress(FileNotFoundError):
        owner = (run.path / _OWNER).lstat()
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            is_lock = fields[1] == "FLOCK" and fields[5].endswith(f":{owner.st_ino}")
            if is_lock and _has_open(int(fields[4]), owner):
                return int(fields[4])
    return None


def _has_open(process: int, file: os.stat_result) -> bool:
    """Returns whether a process has a file open: inodes are of one file system only."""
    for descriptor in Path(f"/proc/{process}/fd").glob("*"):
        with suppress(OSError):
            if os.path.samestat(descriptor.stat(), file):
                return True
    return False


@contextmanager
def _if_free(run: RunFolder) -> Iterator[FileIO | None]:
    """Yields a run's lock, held within the block, or None if it has none; OSError if it is held."""
    if not (run.path / _OWNER).exists():
        yield None
        return
    with open_own(run.path / _OWNER, "r+") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield owner


@contextmanager
def _held(path: Path, *, wait_s: float) -> Iterator[None]:
    """Locks a file for the block, and writes the machine's name into it."""
    deadline = time.monotonic() + wait_s
    with open_own(path, "r+") as file:
        while not try_lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise ValueError(
                    f"another process is at work on run {path.parent.name}: wait for it or stop it "
                    "first"
                )
            time.sleep(0.1)
        file.truncate(0)
        with suppress(OSError):  # a full disk: `close_if_lost` then skips this run
            file.write(platform.node().encode())
        yield
