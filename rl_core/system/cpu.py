"""What Linux says of the processor."""

from functools import cache
from pathlib import Path


@cache
def cpu_info() -> str:
    """Returns what Linux says of the first processor."""
    return Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0]


def has_fast_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 faster than float32.

    AMX does, and AVX-512 BF16 on AMD's CPUs. On Intel's the latter has half of float32's speed:
    virtual machines may hide their AMX.
    """
    has_avx512_bf16 = "AuthenticAMD" in cpu_info() and "avx512_bf16" in cpu_info()
    return has_avx512_bf16 or "amx_bf16" in cpu_info()
