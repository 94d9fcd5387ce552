"""Part h: two steps of the preset countdown-1.5b-24gb by its own command, in 24 GiB of a card.

Random weights of its model's shape, a tokenizer of one token per byte; learner and vLLM share the
card. On a CPU: tiny shapes and transformers' engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.gpu_check.bench import TINY, Bench
from benchmarks.gpu_check.report import Row

_NEEDED = "prefect", "duckdb", "hydra", "ray"
_CARD_GIB = 24
_STEPS = 2
_SETTINGS = (
    "preset=countdown-1.5b-24gb",
    "data.train_size=512",
    "data.test_size=64",
    "data.max_prompt_length=1024",  # a token per byte
    f"trainer.total_steps={_STEPS}",
    f"trainer.test_freq={_STEPS}",
    f"trainer.save_freq={_STEPS}",
)
_REHEARSED = (
    *("data.train_batch_size=4", "actor.mini_batch_size=2", "algorithm.group_size=2"),
    *("data.max_response_length=16", "model.dtype=float32", "rollout.engine=hf"),
    *("resources.learner_gpus=0", "resources.rollout_gpus=0"),
)


def checks(bench: Bench) -> Iterator[Row]:
    """Yields what preflight plans, the run, and what the card held at most."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        yield Row("a preset's two steps", None, note=f"left out: no {', '.join(missing)}")
        return
    from rl_core.sft.train import train_tokenizer

    has_vllm = find_spec("vllm") is not None
    model = bench.model("Qwen/Qwen2.5-1.5B", None if bench.on_card else TINY)
    train_tokenizer((), vocab_size=258).save_pretrained(model)
    root = bench.folder / "outputs"
    settings = [*_SETTINGS, f"model.path={model}", f"storage.root={root}", "run_id=preset"]
    if bench.on_card:
        share = 0.25 * _CARD_GIB / (torch.cuda.get_device_properties(0).total_memory / 2**30)
        settings.append(f"rollout.gpu_memory_utilization={share:.4f}")
        settings += [] if has_vllm else ["rollout.engine=hf"]
        torch.cuda.empty_cache()
    else:
        settings += _REHEARSED
    plan = _call("preflight", *settings).stdout
    planned = [line.split(None, 2)[2] for line in plan.splitlines() if " memory " in line]
    yield Row("preflight's plan", bool(planned), note="; ".join(planned))
    held: list[float] = [0.0]
    seconds: list[float] = []
    with bench.timed(seconds), _watched(held if bench.on_card else []):
        done = _call("run", *settings)
    file = root / "runs" / "preset" / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [row for row in map(json.loads, lines) if row["step"] > 0]
    numbers: dict[str, float | str] = {"steps": len(rows), "s with start and end": seconds[0]}
    for row in rows[-1:]:
        names = "timing_s/step", "timing_s/gen", "timing_s/update_actor", "timing_s/sync"
        numbers |= {name: row[name] for name in names if name in row}
        numbers |= {k: v for k, v in row.items() if k.startswith(("memory/oom/", "memory/peak"))}
    if bench.on_card:
        numbers["GiB of the card at most"] = held[0]
    is_ok = done.returncode == 0 and len(rows) == _STEPS and held[0] <= _CARD_GIB
    message = (done.stderr or done.stdout).strip().splitlines()[-1:]
    yield Row("a preset's two steps", is_ok, numbers, "" if is_ok else " ".join(message))


def _call(command: str, *settings: str) -> subprocess.CompletedProcess[str]:
    start = "import sys; from flows.cli.main import main; sys.exit(main())"
    program = [sys.executable, "-P", "-c", start, command, *settings]
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    return subprocess.run(program, capture_output=True, text=True, env=environment, cwd=root)


@contextmanager
def _watched(held: list[float]) -> Iterator[None]:
    """Notes in `held` the most GiB that the card holds during the block; needs no CUDA context."""
    ended = threading.Event()
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]

    def look() -> None:
        while not ended.wait(0.5):
            mib = subprocess.run(query, capture_output=True, text=True).stdout.strip()
            held[0] = max(held[0], float(mib or 0) / 1024)

    watcher = threading.Thread(target=look, daemon=True)
    if held:
        watcher.start()
    yield
    ended.set()
    if held:
        watcher.join()
