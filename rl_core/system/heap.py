"""Gives freed memory back to the machine."""

import ctypes
from contextlib import suppress


class _HeapFigures(ctypes.Structure):
    """glibc's `struct mallinfo2`: the ninth, `fordblks`, is what is free."""

    _fields_ = (("figures", ctypes.c_size_t * 10),)


def give_back_heap() -> None:
    """Gives back the freed memory that the C library keeps, if it is more than 256 MiB.

    glibc unmaps freed blocks above 32 MiB and keeps smaller ones: all tensors of a model of half a
    billion weights but the embedding. Its learner kept 1.6 GiB of them after a step.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # another C library, or one of before 2021
        libc.mallinfo2.restype = _HeapFigures
        # Less is not worth the page faults of taking it again.
        if libc.mallinfo2().figures[8] > 256 * 2**20:
            libc.malloc_trim(0)
