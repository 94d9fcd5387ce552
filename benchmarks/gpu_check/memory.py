"""Parts c, i and j: the memory plan next to the peaks of real steps of Qwen2.5's shapes.

Micro-batches are as full as the settings allow, as the plan assumes. The second step is measured:
by then the optimizers' moments exist.
"""

from __future__ import annotations

import gc
import importlib.util
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from benchmarks.gpu_check.bench import TINY, Bench, Sections, merged, random_batch
from benchmarks.gpu_check.peaks import peak_bytes
from benchmarks.gpu_check.report import Row
from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner
from rl_core.resources.memory_need import CUDA_GIB, learner_peak
from rl_core.resources.memory_plan import ModelShape, memory_plan

_GIB = 2**30
_BOUND = 0.1
"""Allowed difference, as a share of the plan."""
_SIZES = ("Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-3B")
_REHEARSED = TINY | {
    "vocab_size": 8_192,
    "hidden_size": 256,
    "intermediate_size": 1_024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
_GRPO: Sections = {"algorithm": {"estimator": "grpo", "group_size": 2}}
_CHECKPOINTED: Sections = {"model": {"gradient_checkpointing": True}}
_VARIANTS: dict[str, Sections] = {
    "critic": {},
    "critic, checkpointing": _CHECKPOINTED,
    "critic, checkpointing, offload": merged(_CHECKPOINTED, {"resources": {"offload": True}}),
    "no critic, checkpointing": merged(_GRPO, _CHECKPOINTED),
}
_LORA: Sections = merged(_CHECKPOINTED, {"model": {"lora_rank": 32}})
_ADAPTERS = {"critic, adapters": _LORA, "no critic, adapters": merged(_GRPO, _LORA)}
if importlib.util.find_spec("bitsandbytes"):
    _VARIANTS["critic, checkpointing, 8-bit AdamW"] = merged(
        _CHECKPOINTED, {"actor": {"optimizer": "adamw_8bit"}}
    )
_PHASES = {
    "log_probs": ("old_log_prob", "ref", "values"),
    "update_critic": ("update_critic",),
    "update_actor": ("update_actor",),
}
"""What is planned, and the phases in which it is measured."""


def checks(bench: Bench) -> Iterator[Row]:
    """Yields each shape with each way to save memory, if it fits by the plan."""
    yield from _beside_the_plan(bench, _SIZES, _VARIANTS)


def adapters(bench: Bench) -> Iterator[Row]:
    """Part i: yields adapters, whose plans were 15% above the peak on 2026-11-27."""
    yield from _beside_the_plan(bench, _SIZES[:2], _ADAPTERS)


def micro_batches(bench: Bench) -> Iterator[Row]:
    """Part j: yields seconds and memory of an update by tokens of a micro-batch."""
    num_prompts, sizes = (64, (8_192, 16_384, 32_768, 65_536)) if bench.on_card else (4, (256, 512))
    variants = {
        f"{tokens:,} tokens a pass": merged(
            _GRPO,
            {"data": {"train_batch_size": num_prompts}},
            {"actor": {"mini_batch_size": num_prompts, "micro_batch_tokens": tokens}},
        )
        for tokens in sizes
    }
    yield from _beside_the_plan(bench, _SIZES[:1], variants)


def _beside_the_plan(
    bench: Bench, sizes: Sequence[str], variants: Mapping[str, Sections]
) -> Iterator[Row]:
    limit = torch.cuda.mem_get_info()[0] / _GIB - CUDA_GIB if bench.on_card else float("inf")
    for size in sizes if bench.on_card else ("rehearsal",):
        fields = None if bench.on_card else _REHEARSED
        shape = ModelShape.from_folder(bench.model(size, fields))
        for name, sections in variants.items():
            config = _config(bench, sections)
            planned = learner_peak(memory_plan(shape, config)).total_bytes
            if planned / _GIB > limit:
                left_out = f"left out: planned {planned / _GIB:.1f} GiB, {limit:.1f} are free"
                yield Row(f"{size}, {name}", None, note=left_out)
                continue
            if bench.on_card:
                yield from _on_card(bench, size, name, shape, config)
            else:
                yield _rehearsed(bench, size, name, shape, config)
            gc.collect()
        shutil.rmtree(bench.folder / size)


def _config(bench: Bench, sections: Sections) -> RunConfig:
    long = bench.on_card
    base: Sections = {
        "data": {
            "train_batch_size": 8,
            "max_prompt_length": 256 if long else 32,
            "max_response_length": 1_024 if long else 64,
        },
        "actor": {"mini_batch_size": 4, "micro_batch_tokens": 5_120 if long else 512},
        "model": {"dtype": "bfloat16" if long else "float32"},
    }
    return bench.config(merged(base, sections))


def _batch(config: RunConfig, shape: ModelShape) -> TrainBatch:
    """Returns rollouts of the longest prompts and responses."""
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    return random_batch(
        config.data.train_batch_size,
        config.algorithm.group_size,
        prompt=(prompt, prompt),
        response=(response, response),
        vocab_size=shape.vocab_size,
    )


def _on_card(
    bench: Bench, size: str, name: str, shape: ModelShape, config: RunConfig
) -> Iterator[Row]:
    """Yields the largest phase as judged, and all of them."""
    learner, batch = Learner(config, bench.folder / size), _batch(config, shape)
    learner.learn(batch)
    metrics, _ = learner.learn(batch)
    del learner
    torch.cuda.empty_cache()
    plan = {phase.phase: phase.total_bytes / _GIB for phase in memory_plan(shape, config)[:-1]}
    peaks = {
        planned: max(metrics.get(f"memory/peak_gib/{phase}", 0.0) for phase in phases)
        for planned, phases in _PHASES.items()
    }
    for phase, planned in plan.items():
        numbers = {"planned GiB": planned, "measured GiB": peaks[phase]}
        yield Row(f"{size}, {name}, {phase}", None, numbers, is_case=True)
    seconds = {"s of the update": metrics["timing_s/update_actor"]}
    row = _row(f"{size}, {name}", max(plan.values()), max(peaks.values()), on_card=True)
    yield replace(row, numbers=row.numbers | seconds)


def _rehearsed(bench: Bench, size: str, name: str, shape: ModelShape, config: RunConfig) -> Row:
    learner, batch = Learner(config, bench.folder / size), _batch(config, shape)
    learner.learn(batch)
    resident = _held(learner)
    _, above = peak_bytes(bench.device, lambda: learner.learn(batch))
    planned = learner_peak(memory_plan(shape, config)).total_bytes
    return _row(f"{size}, {name}", planned / _GIB, (resident + above) / _GIB, on_card=False)


def _held(learner: Learner) -> int:
    """Returns the bytes of all weights and moments; shared memory counts once."""
    models = (learner.models.actor, learner.models.reference, learner.models.critic)
    tensors = [tensor for model in models if model is not None for tensor in model.parameters()]
    for name, optimizer in learner.optimizers.items():
        tensors += optimizer.state_tensors(name).values()
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())


def _row(name: str, planned: float, measured: float, *, on_card: bool) -> Row:
    ratio = measured / planned
    numbers = {"planned GiB": planned, "measured GiB": measured, "of the plan": ratio}
    if on_card:
        return Row(name, abs(ratio - 1) <= _BOUND, numbers, f"allowed: within {_BOUND:.0%}")
    # With tiny shapes the plan is mostly its constants, above all a block of logits.
    return Row(name, ratio <= 1 + _BOUND, numbers, f"allowed: at most {_BOUND:.0%} above")
