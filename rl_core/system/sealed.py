"""A call that may compute and nothing else, in a process that ends with it.

For scorers of other packages, which read what a model wrote. They get no way to run it: whatever
they evaluate is replaced (`rl_core.envs.reasoning_gym.scoring`). This is the wall behind that:
each response has a copy of the process for itself, so nothing that is done there outlives it.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import sysconfig
from collections.abc import Callable, Collection
from functools import partial
from types import CodeType
from typing import Any, Final, NoReturn

from rl_core.system.isolation import stay_among_own

_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1
_HARMLESS: Final = frozenset(
    {"builtins.id", "import", "marshal.loads", "object.__getattr__", "object.__setattr__"}
    | {"os.listdir", "sys._getframe"}
)
"""What Python does when it reads a module, or looks at itself (names of PEP 578)."""
_INSTALLED: Final = tuple({f"{sysconfig.get_path(name)}/" for name in ("stdlib", "purelib")})
_AST_ONLY: Final = "<unknown>"
"""The file name of `ast.parse`, whose result is never run: `exec` does not let it pass."""


class NotSealed(Exception):  # noqa: N818  # no error of ours
    """What a call tried to do besides computing, or how its process ended."""


class TooSlow(Exception):  # noqa: N818  # no error of ours
    """A call took longer than it may."""


def sealed(
    call: Callable[[], float], *, cpu_s: float, generators: Collection[CodeType] = ()
) -> float:
    """Returns what a call returns; 0 where it raises.

    Args:
        call: reads what it needs from memory; what it changes there is forgotten.
        cpu_s: CPU seconds that it may take, so that a busy machine changes no score.
        generators: functions of libraries that may run code which they wrote themselves.

    Raises:
        TooSlow: it took longer.
        NotSealed: it opened, wrote, started, imported or ran something, or its process died.
    """
    ours, theirs = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            _answer(call, cpu_s, generators, parent, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    with open(ours, "rb") as pipe:  # noqa: PTH123  # a descriptor
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) == signal.SIGPROF:
            raise TooSlow(f"no score within {cpu_s:g} CPU seconds")
        raise NotSealed(f"scoring it was killed by signal {os.WTERMSIG(status)}")
    answer = json.loads(said or "{}")
    if "score" not in answer:
        raise NotSealed(f"scoring it tried {answer.get('tried', 'to leave')}, which is forbidden")
    return float(answer["score"])


def _answer(
    call: Callable[[], float],
    cpu_s: float,
    generators: Collection[CodeType],
    parent: int,
    pipe: int,
) -> NoReturn:
    """Runs the call in the copy, and writes its score."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(pipe, 3)
    os.closerange(4, 2**20)  # the channel to the trainer among them
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    stay_among_own(compute_only=True)
    sys.addaudithook(partial(_watch, generators))
    try:
        score = float(call())
    except Exception:  # noqa: BLE001  # scorers raise what parsers of a model's text may raise
        score = 0.0
    _say({"score": score})


def _watch(generators: Collection[CodeType], event: str, arguments: tuple[Any, ...]) -> None:
    """Ends the process at the first thing that is more than computing."""
    if event in _HARMLESS:
        return
    if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        allowed = _is_installed(arguments[0])
    elif event in ("compile", "exec"):
        file = arguments[1] if event == "compile" else arguments[0].co_filename
        allowed = _is_installed(file) or sys._getframe(1).f_code in generators
        allowed |= event == "compile" and file == _AST_ONLY
    else:
        allowed = False
    if not allowed:
        _say({"tried": event})


def _is_installed(path: object) -> bool:
    return isinstance(path, str) and path.startswith(_INSTALLED)


def _say(answer: dict[str, Any]) -> NoReturn:
    os.write(3, json.dumps(answer).encode())
    os._exit(0)
