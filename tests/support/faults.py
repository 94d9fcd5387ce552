"""Real disks that fill up and real processes that die, for the tests of what lands on disk."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DISK_BYTES = 2 * 2**20


@contextmanager
def mounted_small_disk(parent: Path, num_bytes: int = DISK_BYTES) -> Iterator[Path]:
    """Yields a file system of its own; without root the test skips, but not in CI."""
    folder = parent / "small_disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={num_bytes}", "none", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        assert "MUST_MOUNT" not in os.environ, mounted.stderr
        pytest.skip(f"a disk that fills up is needed: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def leave_free(disk: Path, num_bytes: int) -> None:
    """Fills a small disk with ballast until so many bytes are free."""
    ballast = disk / "ballast"
    ballast.unlink(missing_ok=True)
    stats = os.statvfs(disk)
    ballast.write_bytes(b"\0" * (stats.f_bavail * stats.f_frsize - num_bytes))


def leave_files(disk: Path, num_files: int) -> None:
    """Lets a small disk take so many files, folders and links more."""
    stats = os.statvfs(disk)
    most = stats.f_files - stats.f_ffree + num_files
    subprocess.run(["mount", "-o", f"remount,nr_inodes={most}", str(disk)], check=True)


def die_at_event(number: int) -> Callable[[], int]:
    """This process gets SIGKILL at its n-th system event; returns what tells how many there were.

    Events are what Python audits: each open, mkdir, chmod, rename, symlink, unlink and listing.
    """
    seen = 0

    def count(event: str, _: tuple[object, ...]) -> None:
        nonlocal seen
        if event == "open" or event.startswith(("os.", "shutil.")):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    return lambda: seen


def run_and_kill_at_event(action: Callable[[], object], event_number: int) -> bool:
    """Runs an action in a child that dies at its n-th system event, and tells if it did."""
    child = os.fork()
    if child == 0:
        die_at_event(event_number)
        try:
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def kills_at_each_event(
    parent: Path, *, more_than: int
) -> Iterator[tuple[Path, Callable[[Callable[[], object]], None]]]:
    """Yields a folder, and a kill at event 1, 2, ... to the end, which is beyond `more_than`."""
    is_killed = True

    def kill(action: Callable[[], object]) -> None:
        nonlocal is_killed
        is_killed = run_and_kill_at_event(action, event_number)

    for event_number in itertools.count(1):
        folder = parent / str(event_number)
        yield folder, kill
        shutil.rmtree(folder)
        if not is_killed:
            break
    assert event_number > more_than


def found_after_kills(
    prepare: Callable[[], object], action: Callable[[], object], look: Callable[[], object]
) -> list[object]:
    """What is found after an action is killed at its n-th system event; the last one is whole."""
    found = []
    for event_number in range(1, 200):
        prepare()
        killed = run_and_kill_at_event(action, event_number)
        found.append(look())
        if not killed:
            return found
    raise AssertionError("it has no end")
