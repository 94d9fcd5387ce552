"""What Linux lets a process take away from itself, for good and for all that it starts.

Landlock is asked for by its system calls, since no library of ours has it. Where the kernel is too
old nothing happens: it is a second wall, behind one that always stands.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_SET_NO_NEW_PRIVS: Final = 38
_DROP_FROM_BOUNDING_SET: Final = 24
_CAPABILITIES_VERSION: Final = 0x20080522
_READ_OTHERS: Final = {"SYS_PTRACE": 19, "SYS_ADMIN": 21, "PERFMON": 38}
"""Capabilities of root by which it reads any process's memory."""
_CREATE_RULESET: Final = 444
_RESTRICT_SELF: Final = 446
_ASK_FOR_VERSION: Final = 1
_RIGHTS_OF_FILES: Final = (0, 13, 14, 15, 15, 16)
"""How many each version of Landlock knows, from version 0: none at all."""
_TCP_SINCE: Final = 4
_SCOPES_SINCE: Final = 6
"""Linux 6.12."""
_NO_SIGNALS: Final = 2
_NO_TCP: Final = 0b11
_NO_FILES: Final = 0b1111_1111_1111_0011
"""Running, writing, making, moving and removing; reading stays."""
_NO_DEVICES: Final = 1 << 11
"""Making a block device, which nothing here does: a rule must forbid something."""


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


def stay_among_own(*, compute_only: bool = False) -> bool:
    """Has the kernel keep this process, root's too, from all that it did not start itself.

    It cannot read their memory or environment, nor send them signals.

    Args:
        compute_only: it may not run a program, change a file or use TCP either.

    Returns:
        Whether the kernel does all of that (Linux 6.12). An older one with Landlock (5.13) lets it
        send signals, before 6.7 also use TCP; without Landlock nothing is kept from it.
    """
    if sys.platform != "linux":
        return False
    _drop_capabilities()
    version = max(0, _LIBC.syscall(_CREATE_RULESET, None, 0, _ASK_FOR_VERSION))
    if not version:
        return False
    known = (1 << _RIGHTS_OF_FILES[min(version, len(_RIGHTS_OF_FILES) - 1)]) - 1
    rules = _Ruleset(
        files=(_NO_FILES if compute_only else _NO_DEVICES) & known,
        net=_NO_TCP if compute_only and version >= _TCP_SINCE else 0,
        scoped=_NO_SIGNALS if version >= _SCOPES_SINCE else 0,
    )
    descriptor = _LIBC.syscall(_CREATE_RULESET, ctypes.byref(rules), ctypes.sizeof(rules), 0)
    if descriptor < 0 or _LIBC.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    failed = _LIBC.syscall(_RESTRICT_SELF, descriptor, 0)
    _LIBC.close(descriptor)
    return not failed and version >= _SCOPES_SINCE


def _drop_capabilities() -> None:
    """Takes from root what it would read other processes with; others have none of it."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low words, high words
    _LIBC.capget(header, words)
    for capability in _READ_OTHERS.values():
        _LIBC.prctl(_DROP_FROM_BOUNDING_SET, capability, 0, 0, 0)
        word, bit = divmod(capability, 32)
        for kind in range(3):
            words[3 * word + kind] &= ~(1 << bit) & 0xFFFFFFFF
    _LIBC.capset(header, words)
