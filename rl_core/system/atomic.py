"""Files and folders that are either whole or absent: temporary sibling, fsync, rename.

Everything that lands in `storage.root` goes through here, so a reader (DuckDB, a resume, a person)
never sees half a file, whatever killed the writer. A file or folder is written as a sibling named
`.tmp-*`, and deleted as `.trash-*`: both are litter once their writer is dead.
"""

import errno
import fcntl
import logging
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
TRASH_PREFIX = ".trash-"
_FILE_MODE = 0o666
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_WAITS_S = 10.0
"""For a folder that is being removed; another user may keep his for ever."""
_UMASK = re.compile(r"^Umask:\t(\d+)$", re.MULTILINE)
_logger = logging.getLogger(__name__)


def write_text_atomically(path: Path, text: str) -> None:
    """Writes a UTF-8 file as `new_file` does."""
    write_bytes_atomically(path, text.encode())


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Writes a file as `new_file` does."""
    with new_file(path) as temporary:
        temporary.write_bytes(data)


@contextmanager
def new_file(final: Path) -> Iterator[Path]:
    """Yields a temporary sibling path to write; at the end it is fsynced and replaces `final`.

    On any exception the temporary vanishes and the old file stands. Parent folders are made; the
    umask decides who may read the file.
    """
    with _replacing(final) as temporary:
        yield temporary
        _make_durable(temporary)


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yields an empty temporary sibling folder to fill; at the end it becomes `final`.

    Each of its files and folders is fsynced first. On any exception it vanishes and the old `final`
    stands. Folders cannot be exchanged in one portable step: the old one is moved aside first, so
    for an instant neither is there, but never half of one. Parent folders are made.
    """
    temporary = _sibling(final, TEMPORARY_PREFIX)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for parent, _, files in os.walk(temporary, topdown=False):
            for name in files:
                _make_durable(Path(parent, name))
            _make_durable(Path(parent))
        trash = final.rename(_sibling(final, TRASH_PREFIX)) if final.exists() else None
        try:
            temporary.rename(final)
        except OSError:
            if trash is not None:
                trash.rename(final)
            raise
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync(final.parent)
    if trash is not None:
        shutil.rmtree(trash, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Renames a folder, then deletes it: half of it is never found under its name."""
    trash = folder.rename(_sibling(folder, TRASH_PREFIX))
    _sync(folder.parent)
    _delete(trash)


def sweep_leftovers(folder: Path) -> list[str]:
    """Deletes what dead writers left in a folder, where none may write now; returns the names."""
    prefixes = (TEMPORARY_PREFIX, TRASH_PREFIX)
    return [
        path.name
        for path in sorted(folder.glob(".*"))
        if path.name.startswith(prefixes) and _delete(path)
    ]


def replace_symlink(link: Path, target: str) -> None:
    """Points `link` at `target` (a name relative to the link's folder) in one step."""
    with _replacing(link) as temporary:
        temporary.symlink_to(target)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, made if missing; waits while another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    with open_own(folder / ".lock", "a", or_others=True) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Keeps a folder's content where it is within the block.

    FileNotFoundError if it is gone, or if another process rearranges it for longer than `_WAITS_S`.

    Many may read at a time; a process that removes or rearranges it must be `alone_in` it first.
    The lock is on the folder itself, so that a reader needs no right to write, and ends with its
    process. A symlink is followed once: the folder that it pointed to stays locked.
    """
    folder = folder.resolve()
    with _opened(folder, os.O_DIRECTORY) as descriptor:
        deadline = time.monotonic() + _WAITS_S
        while not try_lock(descriptor, fcntl.LOCK_SH):
            if time.monotonic() > deadline:
                raise FileNotFoundError(errno.ENOENT, "kept by another process", str(folder))
            time.sleep(0.05)
        if not os.path.samestat(os.fstat(descriptor), folder.stat()):
            raise FileNotFoundError(errno.ENOENT, "removed before it could be read", str(folder))
        yield


def try_lock(file: int | FileIO, kind: int) -> bool:
    """Takes a lock of a kind, `fcntl.LOCK_EX` or `LOCK_SH`, unless another process holds it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def alone_in(folder: Path, *, wait: bool) -> Iterator[bool]:
    """Yields whether no process is `reading` an existing folder; if so, none can within the block.

    With `wait` it waits until all readers have left.
    """
    with _opened(folder, os.O_DIRECTORY) as descriptor:
        if wait:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield try_lock(descriptor, fcntl.LOCK_EX)


def append_line(path: Path, line: bytes, *, durable: bool = True) -> None:
    """Appends a whole line, with its line feed, in one write; `durable` flushes it to the disk.

    On an OSError (the disk is full or fails, or the file is not ours) the file is as it was.
    """
    with open_own(path, "a") as log:
        size = os.fstat(log.fileno()).st_size
        try:
            if log.write(line) != len(line):
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            if durable:
                os.fsync(log)
        except OSError:
            log.truncate(size)
            raise


def open_own(path: Path, mode: str, *, or_others: bool = False) -> FileIO:
    """Opens a file, made if missing, without a buffer.

    PermissionError if it is a link (which may lead to another file of ours) or no plain file, or,
    unless `or_others`, if it belongs neither to this user nor to its folder's owner.
    """
    more = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        file = FileIO(str(path), mode, opener=lambda name, f: os.open(name, f | more, _FILE_MODE))
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # ENXIO: a pipe or socket
            raise _refused(path, "is a link or no plain file") from None
        raise
    info = os.fstat(file.fileno())
    if not stat.S_ISREG(info.st_mode):
        why = "is a link or no plain file"
    elif not or_others and info.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
        why = f"belongs to another user ({info.st_uid})"
    else:
        return file
    file.close()
    raise _refused(path, why)


def refuse_foreign(folder: Path) -> None:
    """Raises a PermissionError if another user owns a folder or its link, and so can change it."""
    for path, info in ((folder, folder.lstat()), (folder.resolve(), folder.stat())):
        if info.st_uid != os.geteuid() and info.st_uid != _owner_of_new_files(path.parent):
            raise _refused(path, f"belongs to another user ({info.st_uid})")


def refuse_links(folder: Path) -> None:
    """Raises a PermissionError if a link is in a folder: what is written there is elsewhere."""
    for path in folder.iterdir():
        if path.is_symlink():
            raise _refused(path, "is a link or no plain file")


def is_disk_full(error: BaseException) -> bool:
    """Returns whether an error means a full disk or a used-up quota."""
    return isinstance(error, OSError) and error.errno in _DISK_FULL


@contextmanager
def disk_errors_as_os_errors(folder: Path) -> Iterator[None]:
    """Raises an OSError in place of what libraries raise if a disk is full or fails.

    safetensors raises its own type with the system's message, torch.save a RuntimeError that does
    not mention the disk: then the free space decides.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        codes = [int(code) for code in re.findall(r"\(os error (\d+)\)", str(error))]
        codes += [code for code in _DISK_FULL if os.strerror(code) in str(error)]
        if not codes and shutil.disk_usage(folder).free >= 2**20:
            raise
        code = codes[0] if codes else errno.ENOSPC
        raise OSError(code, os.strerror(code), str(folder)) from error


@contextmanager
def _replacing(final: Path) -> Iterator[Path]:
    temporary = _sibling(final, TEMPORARY_PREFIX)
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        temporary.replace(final)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(final.parent)


def _sibling(path: Path, prefix: str) -> Path:
    return path.with_name(f"{prefix}{path.name}-{secrets.token_hex(4)}")


def _delete(path: Path) -> bool:
    """Deletes a file or folder; False and a warning if that fails: no save may fail for that."""
    try:
        (shutil.rmtree if path.is_dir() and not path.is_symlink() else os.unlink)(path)
    except OSError as error:  # in it are another user's folder, a mount, a file open on a NFS
        _logger.warning("%s takes room and cannot be deleted (%s): remove it", path, error.strerror)
        return False
    return True


def _refused(path: Path, what: str) -> PermissionError:
    return PermissionError(f"{path} {what}: remove it, or choose another run_id or storage.root")


def _owner_of_new_files(folder: Path) -> int:
    """Returns the owner of new files in a folder: on some network disks it is not our own id."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_uid
    return os.geteuid()


def _make_durable(path: Path) -> None:
    """Sets the mode (libraries that use temporary files leave 0600) and flushes to the disk.

    The umask is read from /proc: `os.umask` reads it only by changing it, for all threads.
    """
    umask = _UMASK.search(Path("/proc/self/status").read_text(encoding="ascii", errors="replace"))
    mode = 0o777 if path.is_dir() else _FILE_MODE
    path.chmod(mode & ~(int(umask[1], 8) if umask else 0o022))
    _sync(path)


@contextmanager
def _opened(path: Path, flags: int = 0) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _sync(path: Path) -> None:
    with _opened(path) as descriptor:
        os.fsync(descriptor)
