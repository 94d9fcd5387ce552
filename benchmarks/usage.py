"""Reports what a contestant of data.py has used, as a line of JSON. Only the standard library."""

from __future__ import annotations

import json
from pathlib import Path


def print_report(cpu_s: float) -> None:
    """Prints CPU seconds and the process's peak megabytes, imports included.

    Not by `ru_maxrss`, which a child inherits from the process that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak_kib = next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]
    print(json.dumps({"cpu_s": cpu_s, "peak_mb": int(peak_kib) / 1e3}))
