"""Compares a card's results with the CPU's; its memory, speed and limits, in one command.

    make gpu-check                                      # or, without our environment:
    python -m benchmarks.gpu_check [--parts a,c|next] [--device cpu|cuda] [--out FILE]

From the repository's root, on Python 3.11 to 3.13 with torch 2.11 or newer; NEEDED names the rest.
On a card at most 31 minutes, `--parts next` 12; on a CPU it rehearses with tiny shapes. Rows are
appended to FILE as they come, and a table for benchmarks/README.md is printed at the end.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu_check.report import PARTS, end_part, read, table, unfinished
from rl_core.system.process_env import apply_defaults, process_environment

NEEDED = "torch", "transformers", "peft", "safetensors", "tokenizers", "numpy", "psutil", "pydantic"
_PYTHONS = (3, 11), (3, 13)
_TORCH = (2, 11)
_NEXT = "hijkl"
"""What no card has shown yet, the most important first."""
_LIMIT_S = {
    **{"a": 200, "b": 60, "c": 260, "d": 180, "e": 140, "f": 60, "g": 190},
    **{"h": 370, "i": 60, "j": 70, "k": 180, "l": 40},  # 12 minutes
}
"""Most seconds of a part on a card, with the start of its process: 31 minutes in all."""
_OUT = Path("outputs/gpu-check.jsonl")


def why_not() -> str | None:
    """Returns what this Python lacks, in one line; None if it lacks nothing."""
    python = sys.version_info[:2]
    if not _PYTHONS[0] <= python <= _PYTHONS[1]:
        return f"Python {python[0]}.{python[1]}: 3.11, 3.12 or 3.13 is needed"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"missing: {' '.join(missing)}. Install them: pip install {' '.join(missing)}"
    version = importlib.metadata.version("torch")
    if tuple(map(int, version.split(".")[:2])) < _TORCH:
        return f"torch {version}: {_TORCH[0]}.{_TORCH[1]} or newer is needed"
    return None


def _chosen(parts: str) -> list[str]:
    names = list(_NEXT) if parts == "next" else list(dict.fromkeys(parts.split(",")))
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"no part {unknown[0]!r}: one or more of {','.join(PARTS)}, or next"
        )
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    only = "a,c: only these; next: what no card has shown yet"
    parser.add_argument("--parts", type=_chosen, default=list(PARTS), help=only)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default a card if any")
    parser.add_argument("--out", type=Path, default=_OUT, help=f"JSON lines, by default {_OUT}")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _device(device: str | None) -> str:
    import torch  # imported here, after the check for missing packages

    has_card = torch.cuda.is_available()
    if device == "cuda" and not has_card:
        sys.exit(f"--device cuda: torch {torch.__version__} sees no card (--device cpu rehearses)")
    return device or ("cuda" if has_card else "cpu")


def run_apart(parts: Sequence[str], device: str, file: Path, limit_s: float | None) -> None:
    """Runs parts in a process of their own: an error of a card breaks its whole process."""
    on_card, start = device == "cuda", time.perf_counter()
    environment = process_environment(
        num_threads=(os.cpu_count() or 1) if on_card else 1,
        on_gpu=on_card,
        sleeps=not {"g", "k"}.isdisjoint(parts),
    )
    environment["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # else no product of a card is deterministic
    command = [sys.executable, "-m", "benchmarks.gpu_check", "--child", "--device", device]
    command += ["--parts", ",".join(parts), "--out", str(file)]
    try:
        code = subprocess.run(command, env=os.environ | environment, timeout=limit_s).returncode
        died = f"its process ended with code {code}"
    except subprocess.TimeoutExpired:
        died = f"stopped after {limit_s:g} s"
    for part in unfinished(parts, read(file)):
        end_part(part, file, ok=False, note=died, seconds=time.perf_counter() - start)


def main() -> int:
    """Runs the parts one after the other and prints the table; 0 if all is ok, else 1."""
    arguments = _arguments()
    apply_defaults()
    if arguments.child:
        from benchmarks.gpu_check.child import run_here

        run_here(arguments.parts, arguments.device, arguments.out)
        return 0
    lack = why_not()
    if lack is not None:
        print(f"gpu-check: {lack}", file=sys.stderr)
        return 2
    device, file = _device(arguments.device), arguments.out
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("", encoding="utf-8")
    if device == "cuda":
        for part in arguments.parts:
            run_apart([part], device, file, _LIMIT_S[part])
    else:
        run_apart(arguments.parts, device, file, None)
    lines = read(file)
    print(table(lines))
    return 0 if all(line.get("ok") is not False for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
