"""The most bytes of tensors at a time: by torch's own count on a card, by its profiler on a CPU.

Both count allocations, not the process's use of the machine, so tiny shapes are enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def peak_bytes(device: torch.device, call: Callable[[], Result]) -> tuple[Result, int]:
    """Returns the call's result, and the most bytes at a time above those before it."""
    if device.type != "cuda":
        return _profiled(call)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def _profiled(call: Callable[[], Result]) -> tuple[Result, int]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        result = call()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    level = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        level += event.nbytes()
        peak = max(peak, level)
    return result, peak
