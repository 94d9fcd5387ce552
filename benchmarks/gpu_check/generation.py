"""Part g: engines: tokens per second, and whether learner and engine mean the same policy.

Also after an update, whose weights go into the engine in place. vLLM only if it is installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.bench import TINY, Bench, Sections, merged, random_rollouts
from benchmarks.gpu_check.report import Row
from rl_core.batch import TrainBatch, collate
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import RolloutEngine, in_order
from rl_core.types import Completion, GenerationRequest, Rollout, SamplingSettings

_BOUNDS = {"float32": 1e-3, "bfloat16": 0.1}
"""Bounds of the mean gap between log-probs, in nats; random weights have wide logits."""
SHAPE: dict[str, Any] = TINY | {
    "vocab_size": 32_768,
    "hidden_size": 896,
    "intermediate_size": 4_864,
    "num_hidden_layers": 12,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
}
"""Half of Qwen2.5-0.5B."""
_LEARN: Sections = {
    "algorithm": {"estimator": "grpo", "group_size": 4, "kl_mode": "none"},
    "actor": {"lr": 1e-3, "micro_batch_tokens": 8_192},
}
UTILIZATION = 0.4
"""Share of the card for vLLM."""


def checks(bench: Bench) -> Iterator[Row]:
    """Yields each engine in each type."""
    model = bench.model("engine", SHAPE if bench.on_card else TINY)
    for dtype in ("float32", "bfloat16") if bench.on_card else ("float32",):
        config = config_of(bench, dtype)
        engine = HfEngine(
            model,
            dtype=config.compute_dtype,
            max_num_seqs=config.rollout.max_num_seqs,
            on_gpu=bench.on_card,
        )
        yield from _looked_at(bench, f"hf, {dtype}", engine, config, model)
        engine.close()
    if find_spec("vllm") is None:
        yield Row("vLLM", None, note="not installed")
        return
    yield from _of_vllm(bench, model, config_of(bench, "bfloat16" if bench.on_card else "float32"))


def config_of(bench: Bench, dtype: str) -> RunConfig:
    """Returns settings of a small step whose engine has a share of the card."""
    prompts, response = (32, 256) if bench.on_card else (4, 16)
    sizes: Sections = {
        "data": {
            "train_batch_size": prompts,
            "max_prompt_length": 160 if bench.on_card else 16,
            "max_response_length": response,
        },
        "actor": {"mini_batch_size": prompts // 2},
        "rollout": {
            "max_num_seqs": 4 * prompts,
            "kv_cache_mib": 16,
            "gpu_memory_utilization": UTILIZATION,
            "sleep": bench.on_card,
        },
        "resources": {"rollout_gpus": float(bench.on_card)},
        "model": {"dtype": dtype},
    }
    return bench.config(merged(_LEARN, sizes))


def _of_vllm(bench: Bench, model: Path, config: RunConfig) -> Iterator[Row]:
    from rl_core.rollout.vllm_engine import VllmEngine

    engine = VllmEngine(config, model, config.rollout.max_num_seqs)
    yield from _looked_at(bench, f"vLLM, {config.compute_dtype}", engine, config, model)
    engine.close()


def _looked_at(
    bench: Bench, name: str, engine: RolloutEngine, config: RunConfig, model: Path
) -> Iterator[Row]:
    """Yields speed and repeatability, then the gaps before and after an update."""
    data = config.data
    rollouts = random_rollouts(
        data.train_batch_size,
        config.algorithm.group_size,
        prompt=(data.max_prompt_length // 2, data.max_prompt_length),
        response=(1, 1),
        vocab_size=512,
    )
    sampling, seconds = SamplingSettings(data.max_response_length), list[float]()
    requests = [GenerationRequest(one.prompt_ids, seed=row) for row, one in enumerate(rollouts)]
    answers = []
    for _ in range(2):
        with bench.timed(seconds):
            answers.append(in_order(engine.generate(requests, sampling)))
    num_tokens = sum(len(completion.response_ids) for completion in answers[1])
    same = sum(
        one.response_ids.tolist() == other.response_ids.tolist()
        for one, other in zip(*answers, strict=True)
    )
    numbers = {"tokens/s": num_tokens / seconds[1], "same again": same / len(requests)}
    # On a card vLLM rounds prompts differently if it has kept them from the first time.
    may_differ = bench.on_card and not isinstance(engine, HfEngine)
    yield Row(f"{name}, speed", None if may_differ else same == len(requests), numbers)
    learner = Learner(config, model)
    gap, batch = _gap(learner, rollouts, answers[1])
    learner.learn(batch)
    engine.update_weights(learner.weights())
    later = in_order(engine.generate(requests, sampling))
    gap_after, _ = _gap(learner, rollouts, later)
    stale, _ = _gap(Learner(config, model), rollouts, later)
    numbers = {"nats before": gap, "after": gap_after, "had it not come": stale}
    bound = _BOUNDS[config.compute_dtype]
    ok = max(gap, gap_after) <= bound and gap_after < stale
    yield Row(f"{name}, mean gap to the learner", ok, numbers, f"allowed {bound:g}")


def _gap(
    learner: Learner, rollouts: list[Rollout], answers: list[Completion]
) -> tuple[float, TrainBatch]:
    """Returns the mean distance of an engine's log-probs to the learner's, and the batch."""
    pairs = zip(rollouts, answers, strict=True)
    batch = collate([replace(rollout, completion=answer) for rollout, answer in pairs])
    experience, _ = learner.make_experience(batch)
    gaps = (experience.old_logprobs.cpu() - batch.rollout_logprobs)[batch.sampled_mask]
    gap = float(gaps.abs().mean())
    assert math.isfinite(gap), "a log-prob is no number"
    return gap, batch
