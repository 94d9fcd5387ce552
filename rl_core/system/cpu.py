"""What Linux says of the processor."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def cpu_info() -> str:
    """Returns what Linux says of the first processor, empty elsewhere."""
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").split("\n\n")[0] if path.is_file() else ""


def has_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 by instructions of its own."""
    return "avx512_bf16" in cpu_info() or "amx_bf16" in cpu_info()
