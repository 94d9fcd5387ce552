"""The processes of one training: known by a mark that all inherit, and ended together.

A SIGKILL leaves no time to tidy up. The next start finds the processes that are left by their mark,
and Ray's folders that have lost their owner by their free lock.
"""

import faulthandler
import logging
import os
import secrets
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import psutil

from rl_core.system.atomic import alone_in, reading

PROCESS_GROUP: Final = "COUNTDOWN_TRAIN_PROCESS_GROUP"
"""Environment variable that holds a group's name, and the file in Ray's folder that does.

A name begins with the process that ends the group: its pid, and when it started."""
_PREFIX: Final = "rl-"
_LONGEST_TEMP_ROOT: Final = 28
"""Bytes: Ray's sockets lie up to 79 below it, and a unix socket's path may have 107."""
_LONGEST_LOADING_S: Final = 1.0
_LONGEST_END_S: Final = 10.0
_START_TIME = 19
_ENV_START = 47
"""Places of starttime and env_start among the fields of /proc/PID/stat after the name (proc(5):
fields 22 and 50)."""
_DUMP: Final = signal.SIGUSR1
_logger = logging.getLogger(__name__)


def new_group() -> str:
    """Returns a name for a group that this process ends."""
    return f"{os.getpid()}-{_stat(os.getpid())[_START_TIME]}-{secrets.token_hex(8)}"


def has_living_owner(process: psutil.Process) -> bool:
    """Returns whether a process belongs to a group that a living process is going to end."""
    pid, _, rest = environment_of(process).get(PROCESS_GROUP, "").partition("-")
    with suppress(OSError):
        return pid.isdecimal() and _stat(int(pid))[_START_TIME] == rest.partition("-")[0]
    return False


def members(group: str, mark: str = PROCESS_GROUP) -> list[psutil.Process]:
    """Returns the living processes that have this mark, whatever their parent, but not this one."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and environment_of(process).get(mark) == group:
                processes.append(process)
    return processes


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Returns a process's environment, once it has loaded its program: before, Linux shows none."""
    deadline = time.monotonic() + _LONGEST_LOADING_S
    while _loads_a_program(process.pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    return dict(process.environ())


def _loads_a_program(pid: int) -> bool:
    """Returns whether a process is within execve: it has a program, but no environment yet."""
    Path(f"/proc/{pid}/exe").readlink()  # OSError: a kernel thread, or another user's
    return _stat(pid)[_ENV_START] == "0"


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


def end_process_group(group: str) -> None:
    """Kills all processes of a group and waits until they are gone; this one lives on."""
    while left := members(group):
        if not end_processes(left):
            return


def end_processes(processes: Iterable[psutil.Process], patience_s: float = 0.0) -> bool:
    """Kills what does not end within `patience_s`, and waits; says whether all are gone.

    A killed process is there until the kernel has freed its memory.
    """
    _, left = psutil.wait_procs(processes, timeout=patience_s)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    _, left = psutil.wait_procs(left, timeout=_LONGEST_END_S)
    if left:
        _logger.error("these processes do not end: %s", ", ".join(str(p.pid) for p in left))
    return not left


def children_that_mention(path: Path) -> list[psutil.Process]:
    """Returns this process's children whose command line names a path, with all their own."""
    processes = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):
            if any(str(path) in argument for argument in child.cmdline()):
                processes += [child, *child.children(recursive=True)]
    return processes


def dump_stacks_on_request() -> None:
    """Makes SIGUSR1 write the stacks of all of this process's threads to its standard error."""
    faulthandler.register(_DUMP, file=2, all_threads=True)


def dump_stacks(group: str) -> None:
    """Makes all processes of the group that can dump their stacks do so, stopped ones too."""
    for process in members(group):
        if _catches(process.pid, _DUMP):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(_DUMP)
                process.resume()


def _catches(pid: int, number: signal.Signals) -> bool:
    """Returns whether a process has a handler for a signal, which would end it otherwise."""
    with suppress(OSError, IndexError, ValueError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        caught = int(status.split("SigCgt:")[1].split()[0], base=16)
        return bool(caught >> (number - 1) & 1)
    return False


@contextmanager
def session_folder() -> Iterator[Path]:
    """Yields an empty temporary folder with a short path, removed here or by the next start.

    No other user can enter it. Processes that start within the block inherit the mark that is in
    it: `sweep_sessions` finds them by it.
    """
    sweep_sessions()
    before = os.environ.get(PROCESS_GROUP)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=short_temp_root()))
    group = os.environ[PROCESS_GROUP] = before or new_group()
    try:
        # Locked before it is marked: what is marked and not locked has lost its owner.
        with reading(folder):
            (folder / PROCESS_GROUP).write_text(group, encoding="ascii")
            yield folder
    finally:
        if before is None:
            del os.environ[PROCESS_GROUP]
        shutil.rmtree(folder, ignore_errors=True)


def sweep_sessions() -> None:
    """Removes the session folders of this user whose owners are dead, and kills what is left."""
    for folder in Path(short_temp_root()).glob(f"{_PREFIX}*/"):
        with suppress(OSError):
            entry = folder.lstat()  # not the target of another user's link
            # It is this user's, and no other user can have put a mark into it.
            is_ours = entry.st_uid == os.getuid() and entry.st_mode == stat.S_IFDIR | 0o700
            if not is_ours or not (folder / PROCESS_GROUP).is_file():
                continue
            with alone_in(folder, wait=False) as is_orphan:
                if is_orphan:
                    end_process_group((folder / PROCESS_GROUP).read_text(encoding="ascii"))
                    shutil.rmtree(folder)


def short_temp_root() -> str:
    """Returns the temp folder, or /tmp if its path leaves no room for Ray's sockets."""
    root = tempfile.gettempdir()
    return root if len(os.fsencode(root)) <= _LONGEST_TEMP_ROOT else "/tmp"
