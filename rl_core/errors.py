"""Errors that cross process borders: raised in a Ray actor, read where a retry is decided."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

_MEMORY_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "bad_alloc",  # C++, if torch passes it on
    "cublas_status_alloc_failed",  # no room for cuBLAS's workspace on a card
    "could not create a primitive",  # oneDNN, which gives no reason: no memory for its code
    "could not create a memory object",  # oneDNN
    "no available memory for the cache blocks",  # vLLM on a card
    "less than requested memory for kv",  # vLLM on the CPU
    "less than desired gpu memory utilization",
)


class OutOfMemory(RuntimeError):  # noqa: N818  # OutOfMemoryError is torch's and Ray's
    """A phase of the step did not fit into memory (the card's or the machine's): worth a retry."""

    def __init__(self, phase: str, detail: str) -> None:
        super().__init__(f"out of memory in {phase}: {detail}")
        self.phase = phase
        self.detail = detail

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Rebuilds from both fields: an exception's default pickle would pass only the message."""
        return type(self), (self.phase, self.detail)


RAY: Final = "Ray"
"""The worker that `WorkerDied` names if Ray itself did not start or has no room for the run."""


class WorkerDied(RuntimeError):  # noqa: N818  # as OutOfMemory
    """A process of the run is gone, and left no exception that says why."""

    def __init__(self, worker: str, detail: str) -> None:
        super().__init__(f"{worker} died: {detail}")
        self.worker = worker
        self.detail = detail

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (self.worker, self.detail)


class RayNotStarted(WorkerDied):
    """Ray did not come up: nothing was killed, so what is wrong is around the run."""


class RankLost(WorkerDied):
    """Raised by a learner rank when another rank is gone in mid-step: an effect, not the cause."""


class Stalled(RuntimeError):  # noqa: N818  # as OutOfMemory
    """A phase showed no progress for `watchdog.stall_s`, and its processes were ended."""

    def __init__(self, phase: str, detail: str) -> None:
        super().__init__(f"stalled in {phase}: {detail}")
        self.phase = phase
        self.detail = detail

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (self.phase, self.detail)


@contextmanager
def out_of_memory_as(phase: str) -> Iterator[None]:
    """Turns any library's out-of-memory error within the block into `OutOfMemory(phase)`.

    torch raises a RuntimeError on the CPU, vLLM a ValueError, Python a MemoryError. They
    are recognised by name and message, so that this module loads none of these libraries.
    """
    try:
        yield
    except OutOfMemory:
        raise
    except (RuntimeError, ValueError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemory(phase, allocation_in_words(error)) from error


def allocation_in_words(error: BaseException) -> str:
    """Returns in one sentence what did not fit and what was free; `error` has the rest."""
    message = str(error)
    request = re.search(r"tried to allocate ([\d.]+ \w+)", message, re.IGNORECASE)
    if request is None:
        return first_line(error)
    room = re.search(r"capacity of ([\d.]+ \w+) of which ([\d.]+ \w+) is free", message)
    free = f": {room[2]} of the card's {room[1]} were free" if room else ""
    return f"tried to allocate {request[1]}{free}"


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its class's name if it has no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def last_line(error: BaseException) -> str:
    """Returns the last line of an error of another process: its message, below the traceback."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether `error` is one that a library raises when memory runs out."""
    is_named_so = any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)
    message = str(error).lower()
    says_so = any(words in message for words in _MEMORY_WORDS)
    return isinstance(error, MemoryError) or is_named_so or says_so
