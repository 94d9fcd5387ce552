"""A call that may compute and nothing else, in a process that ends with it.

For scorers of other packages, which read what a model wrote. What they would evaluate is replaced
(`rl_core.envs.reasoning_gym.scoring`); this is the wall behind that: each response has a copy of
the process for itself, so nothing that is done there outlives it. Landlock, by its system calls, is
a second wall, which older kernels lack.
"""

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Callable
from typing import Any, Final, NoReturn

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_HARMLESS: Final = frozenset(
    {"builtins.id", "import", "marshal.loads", "object.__getattr__", "object.__setattr__"}
    | {"os.listdir", "sys._getframe"}
)
"""What Python does when it reads a module, or looks at itself (names of PEP 578)."""
_INSTALLED: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib")})
_READ_OTHERS: Final = {"SYS_PTRACE": 19, "SYS_ADMIN": 21, "PERFMON": 38}
"""Capabilities of root by which it reads any process's memory."""
_CREATE_RULESET: Final = 444
_RIGHTS_OF_FILES: Final = (0, 13, 14, 15, 15, 16)
"""How many each version of Landlock knows, from version 0: none at all."""
_SCOPES_SINCE: Final = 6
"""Linux 6.12."""


class NotSealed(Exception):  # noqa: N818  # no error of ours
    """What a call tried to do besides computing, or how its process ended."""


class TooSlow(Exception):  # noqa: N818  # no error of ours
    """A call took longer than it may."""


def sealed(call: Callable[[], float], *, cpu_s: float) -> float:
    """Returns what a call returns; 0 if it raises. What it changes in memory is forgotten.

    TooSlow if it takes more than `cpu_s` CPU seconds (of the CPU, so that a busy machine changes no
    score). NotSealed if it opened, wrote, started, imported or ran something, or died.
    """
    ours, theirs = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _answer(call, cpu_s, parent, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    with open(ours, "rb") as pipe:  # noqa: PTH123  # a descriptor
        output = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGPROF:
        raise TooSlow(f"no score within {cpu_s:g} CPU seconds")
    if code < 0:
        raise NotSealed(f"scoring it was killed by signal {-code}")
    answer = json.loads(output or "{}")
    if "score" not in answer:
        raise NotSealed(f"scoring it tried {answer.get('tried', 'to leave')}, which is forbidden")
    return float(answer["score"])


def _answer(call: Callable[[], float], cpu_s: float, parent: int, pipe: int) -> NoReturn:
    die_with(parent)
    os.dup2(pipe, 3)
    os.closerange(4, 2**20)  # the channel to the trainer among them
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    stay_among_own(compute_only=True)
    sys.addaudithook(_watch)
    try:
        score = float(call())
    except Exception:  # noqa: BLE001  # scorers raise what parsers of a model's text may raise
        score = 0.0
    _say({"score": score})


def die_with(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies, even in an endless loop."""
    _LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # died before we asked
        os._exit(1)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    file: object = None
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        file = arguments[0]
    elif event == "compile":
        file = arguments[1]
    elif event == "exec":
        file = arguments[0].co_filename
    is_installed = isinstance(file, str) and file.startswith(_INSTALLED)
    # By `ast.parse`, whose result is never run: `exec` does not let it pass.
    is_parsed = event == "compile" and file == "<unknown>"
    if not (event in _HARMLESS or is_installed or is_parsed):
        _say({"tried": event})


def _say(answer: dict[str, Any]) -> NoReturn:
    os.write(3, json.dumps(answer).encode())
    os._exit(0)


def stay_among_own(*, compute_only: bool = False) -> bool:
    """Makes the kernel keep this process, root's too, away from all that it did not start itself.

    It can then neither read their memory or environment nor send them signals; with `compute_only`
    it may not run a program, change a file or use TCP either. Returns whether the kernel does all
    of that (Linux 6.12). An older Landlock (5.13) allows signals, before 6.7 also TCP; without
    Landlock all stays allowed.
    """
    _drop_capabilities()
    version = max(0, _LIBC.syscall(_CREATE_RULESET, None, 0, 1))  # 1 asks for the version
    if not version:
        return False
    known = (1 << _RIGHTS_OF_FILES[min(version, len(_RIGHTS_OF_FILES) - 1)]) - 1
    # Neither running, writing, making, moving nor removing; or only no making of a block device,
    # which nothing here does: a rule must forbid something.
    no_files = (0b1111_1111_1111_0011 if compute_only else 1 << 11) & known
    no_tcp = 0b11 if compute_only and version >= 4 else 0
    no_signals = 2 if version >= _SCOPES_SINCE else 0
    rules = struct.pack("3Q", no_files, no_tcp, no_signals)
    descriptor = _LIBC.syscall(_CREATE_RULESET, rules, len(rules), 0)
    if descriptor < 0 or _LIBC.prctl(38, 1, 0, 0, 0):  # PR_SET_NO_NEW_PRIVS
        return False
    failed = _LIBC.syscall(446, descriptor, 0)  # landlock_restrict_self
    _LIBC.close(descriptor)
    return not failed and version >= _SCOPES_SINCE


def _drop_capabilities() -> None:
    """Takes from root the capabilities to read other processes; other users have none of them."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3
    words = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: low words, high words
    _LIBC.capget(header, words)
    for capability in _READ_OTHERS.values():
        _LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP
        word, bit = divmod(capability, 32)
        for kind in range(3):
            words[3 * word + kind] &= ~(1 << bit) & 0xFFFFFFFF
    _LIBC.capset(header, words)
