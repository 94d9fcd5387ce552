"""Part d: a first user's own settings, which ended in out-of-memory errors, on 24 GiB of a card.

They are TinyZero's, as verl printed them: Qwen2.5-0.5B, PPO with a critic, 256 prompts, updates of
128, responses of 1,024 tokens, no gradient checkpointing, 16,384 tokens at a time. Out of memory
may cost micro-batches, but never the run.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from benchmarks.gpu_check.bench import TINY, Bench, Sections, merged, random_batch
from benchmarks.gpu_check.report import Row
from rl_core.learner.learner import Learner

_CAP_GIB = 24
_REHEARSED_TOKENS = 128
"""On a CPU, the most tokens of a micro-batch for which the rehearsal raises no card's error."""
_ORIGINAL: Sections = {
    "algorithm": {"estimator": "gae", "kl_coef": 0.001},
    "actor": {"lr": 1e-6, "mini_batch_size": 128, "micro_batch_tokens": 16_384},
    "critic": {"lr": 1e-5},
    "data": {"train_batch_size": 256, "max_prompt_length": 256, "max_response_length": 1_024},
    "model": {"dtype": "bfloat16", "gradient_checkpointing": False},
}
_SMALL: Sections = {"actor": {"micro_batch_tokens": 2_560}}
"""Fits anywhere: the step's result is compared with it."""
_GRADIENT_BOUND = 0.02
"""Allowed share of a gradient's norm, in bfloat16 with other micro-batches."""


def checks(bench: Bench) -> Iterator[Row]:
    """Yields two steps under the cap, and the first step beside one in small micro-batches."""
    rows, prompt, response = 256, (64, 146), (16, 1_024)
    settings = _ORIGINAL
    if not bench.on_card:
        rows, prompt, response = 16, (4, 8), (8, 32)
        settings = merged(
            settings,
            {"data": {"train_batch_size": rows}, "actor": {"mini_batch_size": rows // 2}},
            {"model": {"dtype": "float32"}},
        )
    model = bench.model("Qwen/Qwen2.5-0.5B", None if bench.on_card else TINY)
    batch = random_batch(rows, 1, prompt=prompt, response=response, vocab_size=512)
    expected, _ = Learner(bench.config(merged(settings, _SMALL)), model).learn(batch)
    gc.collect()
    learner = Learner(bench.config(settings), model)
    seconds: list[float] = []
    steps = []
    with _capped(bench):
        for _ in range(2):
            with bench.timed(seconds):
                steps.append(learner.learn(batch)[0])
    errors = [_sum(step, "memory/oom/") for step in steps]
    numbers: dict[str, float | str] = {
        "errors in step 1": errors[0],
        "in step 2": errors[1],
        "s of step 1": seconds[0],
        "of step 2": seconds[1],
    }
    numbers |= {
        name.removeprefix("memory/budget_tokens/") + " tokens": int(value)
        for name, value in steps[1].items()
        if name.startswith("memory/budget_tokens/")
    }
    peak = max(v for name, v in steps[1].items() if name.startswith("memory/peak_gib/"))
    ok = bench.on_card or errors[0] > 0  # on a card it only has to finish
    ok &= all(math.isfinite(step["actor/grad_norm"]) for step in steps)
    yield Row("two steps of the original settings", ok, numbers | {"peak GiB": peak})
    gaps = {
        f"{name} gradient away": abs(steps[0][key] - expected[key]) / expected[key]
        for name in ("actor", "critic")
        for key in (f"{name}/grad_norm",)
    }
    ok = max(gaps.values()) <= _GRADIENT_BOUND
    yield Row("step 1 beside small micro-batches", ok, gaps, f"allowed {_GRADIENT_BOUND:g}")


def _sum(metrics: dict[str, float], prefix: str) -> int:
    return int(sum(value for name, value in metrics.items() if name.startswith(prefix)))


@contextmanager
def _capped(bench: Bench) -> Iterator[None]:
    """Limits this process to a smaller card's memory; on a CPU, many tokens raise its error."""
    if bench.on_card:
        total = torch.cuda.get_device_properties(bench.device).total_memory
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(min(1.0, _CAP_GIB * 2**30 / total))
        yield
        torch.cuda.set_per_process_memory_fraction(1.0)
        return
    handle = register_module_forward_pre_hook(_out_of_memory)
    try:
        yield
    finally:
        handle.remove()


def _out_of_memory(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    if isinstance(module, nn.Embedding) and inputs[0].numel() > _REHEARSED_TOKENS:
        raise torch.OutOfMemoryError(f"CUDA out of memory, at {inputs[0].numel()} tokens")
