"""Part g: engines: tokens per second, and whether learner and engine mean the same policy.

Also after an update, whose weights go into the engine in place. vLLM only if it is installed.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_check.bench import TINY, Bench, Sections, merged, random_batch
from benchmarks.gpu_check.report import Row
from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import RolloutEngine, in_order
from rl_core.types import Completion, GenerationRequest, SamplingSettings

_GIB = 2**30
_BOUNDS = {"float32": 1e-3, "bfloat16": 0.1}
"""Bounds of the mean gap between log-probs, in nats; random weights have wide logits."""
_SHAPE: dict[str, Any] = TINY | {
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
_UTILIZATION = 0.4
"""Share of the card for vLLM."""


def checks(bench: Bench) -> Iterator[Row]:
    """Yields each engine in each type."""
    model = bench.model("engine", _SHAPE if bench.on_card else TINY)
    for dtype in ("float32", "bfloat16") if bench.on_card else ("float32",):
        config = _config(bench, dtype)
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
    yield from _of_vllm(bench, model, _config(bench, "bfloat16" if bench.on_card else "float32"))


def _config(bench: Bench, dtype: str) -> RunConfig:
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
            "gpu_memory_utilization": _UTILIZATION,
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
    if bench.on_card:  # asleep since its last response
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        ok = free / total > 1 - _UTILIZATION / 2
        yield Row("vLLM asleep", ok, {"GiB free": free / _GIB, "of": total / _GIB})
    engine.close()


def _looked_at(
    bench: Bench, name: str, engine: RolloutEngine, config: RunConfig, model: Path
) -> Iterator[Row]:
    """Yields speed and repeatability, then the gaps before and after an update."""
    data = config.data
    asked = random_batch(
        data.train_batch_size,
        config.algorithm.group_size,
        prompt=(data.max_prompt_length // 2, data.max_prompt_length),
        response=(1, 1),
        vocab_size=512,
    )
    sampling, seconds = SamplingSettings(data.max_response_length), list[float]()
    prompts = [
        tuple(ids[:length])
        for ids, length in zip(asked.input_ids.tolist(), asked.prompt_lengths.tolist(), strict=True)
    ]
    requests = [GenerationRequest(prompt, seed=row) for row, prompt in enumerate(prompts)]
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
    is_told = bench.on_card and not isinstance(engine, HfEngine)
    yield Row(f"{name}, speed", None if is_told else same == len(requests), numbers)
    learner = Learner(config, model)
    gap, batch = _gap(learner, asked, answers[1])
    learner.learn(batch)
    engine.update_weights(learner.weights())
    later = in_order(engine.generate(requests, sampling))
    gap_after, _ = _gap(learner, asked, later)
    stale, _ = _gap(Learner(config, model), asked, later)
    numbers = {"nats before": gap, "after": gap_after, "had it not come": stale}
    bound = _BOUNDS[config.compute_dtype]
    ok = max(gap, gap_after) <= bound and gap_after < stale
    yield Row(f"{name}, mean gap to the learner", ok, numbers, f"allowed {bound:g}")


def _gap(
    learner: Learner, asked: TrainBatch, answers: list[Completion]
) -> tuple[float, TrainBatch]:
    """Returns the mean distance of an engine's log-probs to the learner's, and the batch."""
    lengths = torch.tensor([len(answer.response_ids) for answer in answers])
    width, rows = int((asked.prompt_lengths + lengths).max()), len(answers)
    ids = torch.zeros(rows, width, dtype=torch.int64)
    logprobs = torch.zeros(rows, int(lengths.max()))
    for row, answer in enumerate(answers):
        start, number = int(asked.prompt_lengths[row]), int(lengths[row])
        ids[row, :start] = asked.input_ids[row, :start]
        ids[row, start : start + number] = torch.from_numpy(answer.response_ids)
        logprobs[row, :number] = torch.from_numpy(answer.logprobs)
    batch = replace(
        asked,
        input_ids=ids,
        response_lengths=lengths,
        rollout_logprobs=logprobs,
        truncated=torch.tensor([answer.finish_reason == "length" for answer in answers]),
    )
    experience, _ = learner.make_experience(batch)
    found, mask = experience.old_logprobs.cpu(), batch.sampled_mask
    gap = float((found - logprobs)[mask].abs().mean())
    assert math.isfinite(gap), "a log-prob is no number"
    return gap, batch
