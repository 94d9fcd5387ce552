"""Preflight's arithmetic: what the run will need of memory and disk (`preflight_time`: of time)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from rl_core.cards import named_card
from rl_core.config import RunConfig
from rl_core.disk_plan import disk_plan
from rl_core.known_shapes import known_shape
from rl_core.memory_plan import ModelShape, PhaseMemory, memory_plan, micro_batch_tokens
from tasks.finding import GIB, Finding
from tasks.preflight_device import read_device, torch_version
from tasks.time_plan import planned_steps

_PROCESS_GIB: Final = 0.9
"""Of a process with torch and vLLM, before it holds a model."""
_CUDA_CONTEXT_GIB: Final = 0.5
"""Of a card, for each process that uses it."""
_LEANER_MODELS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"gradient_checkpointing": True},
    {"gradient_checkpointing": True, "lora_rank": 64},
)
"""What can be changed about the model, beside the micro-batch: nothing, slower, other weights."""
_VERSIONS_IN_FLIGHT: Final = 4
"""Ray's store is made for so many times the weights, see workers.py."""
_NO_HELP: Final = "data.train_batch_size and trainer.test_problems change nothing here"


def memory_findings(config: RunConfig) -> Iterator[Finding]:
    """The memory plan against the card or the machine, and the settings that would make it fit."""
    shape = model_shape(config)
    if shape is None:
        return
    plan = memory_plan(shape, config)
    learner = _peak(plan)
    tokens = micro_batch_tokens(config)
    message = (
        f"learner {learner.total_bytes / GIB:.2f} GiB at most ({learner.phase}), engines "
        f"{config.rollout.num_engines} x {plan[-1].total_bytes / GIB:.2f} GiB; all logits of "
        f"{tokens:,} tokens, never held at once, would take "
        f"{shape.plain_logits_bytes(tokens) / GIB:.3g} GiB"
    )
    on_gpu = config.resources.learner_gpus or config.resources.rollout_gpus
    needs = _card_gib_needed if on_gpu else _machine_gib_needed
    limit = _card_gib(config) if on_gpu else psutil.virtual_memory().available / GIB
    if limit is None:
        yield Finding("memory", "ok", message)
        return
    needed = needs(shape, config)
    place = f"a card of {limit:.3g} GiB" if on_gpu else f"this machine, {limit:.1f} GiB are free"
    message += f"; with the processes themselves {needed:.1f} GiB on {place}"
    if needed <= limit:
        yield Finding("memory", "ok", message)
        return
    yield Finding("memory", "warning", message, _what_fits(shape, config, needs, limit))


def _what_fits(
    shape: ModelShape,
    config: RunConfig,
    needs: Callable[[ModelShape, RunConfig], float],
    limit: float,
) -> str:
    """Returns overrides to paste, those that cost the least first, or that none are enough."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    config, engine_words = _leaner_engine(shape, config, needs, limit)
    budgets = [config.actor.micro_batch_tokens]
    while budgets[-1] > longest:
        budgets.append(max(budgets[-1] // 2, longest))
    for changes in _LEANER_MODELS:
        model = config.model.model_copy(update=changes)
        # Checkpointing costs a third of the time; a card loses more by tiny micro-batches.
        small_ones_cost = config.resources.learner_gpus > 0 and not changes
        for budget in budgets[:2] if small_ones_cost else budgets:
            actor = config.actor.model_copy(update={"micro_batch_tokens": budget})
            leaner = config.model_copy(update={"model": model, "actor": actor})
            if needs(shape, leaner) <= limit:
                words = [f"model.{name}={str(value).lower()}" for name, value in changes.items()]
                words = engine_words + words
                if budget != config.actor.micro_batch_tokens:
                    words.append(f"actor.micro_batch_tokens={budget}")
                return f"{' '.join(words)} would fit; {_NO_HELP}"
    return f"no micro-batch fits, not even with adapters: take a smaller model; {_NO_HELP}"


def _leaner_engine(
    shape: ModelShape,
    config: RunConfig,
    needs: Callable[[ModelShape, RunConfig], float],
    limit: float,
) -> tuple[RunConfig, list[str]]:
    """Returns settings with fewer responses at a time, and how to say so, where these are the peak.

    What vLLM takes is set by other means: `kv_cache_mib`, `gpu_memory_utilization`.
    """
    rollout, first = config.rollout, config.rollout.max_num_seqs
    while rollout.engine == "hf" and rollout.max_num_seqs > 1 and needs(shape, config) > limit:
        plan = memory_plan(shape, config)
        if plan[-1].total_bytes <= _peak(plan).total_bytes:
            break
        rollout = rollout.model_copy(update={"max_num_seqs": rollout.max_num_seqs // 2})
        config = config.model_copy(update={"rollout": rollout})
    is_leaner = rollout.max_num_seqs < first
    return config, [f"rollout.max_num_seqs={rollout.max_num_seqs}"] if is_leaner else []


def _peak(plan: Sequence[PhaseMemory]) -> PhaseMemory:
    return max((p for p in plan if p.process == "learner"), key=lambda p: p.total_bytes)


def _machine_gib_needed(shape: ModelShape, config: RunConfig) -> float:
    plan, num_engines = memory_plan(shape, config), config.rollout.num_engines
    models = _peak(plan).total_bytes + num_engines * plan[-1].total_bytes
    return models / GIB + _PROCESS_GIB * (1 + num_engines)


def _card_gib_needed(shape: ModelShape, config: RunConfig) -> float:
    """Learner and engines at their peaks on one card, or the larger of two on their own.

    vLLM takes its share of the card at once, and all new weights come beside it.
    """
    plan, resources = memory_plan(shape, config), config.resources
    share, num_engines = config.rollout.gpu_memory_utilization, config.rollout.num_engines
    incoming = plan[-1].parts["incoming_weights"] / GIB
    engine = share * (_card_gib(config) or 0.0) + incoming + _CUDA_CONTEXT_GIB
    if config.rollout.engine == "hf":
        engine = plan[-1].total_bytes / GIB + _CUDA_CONTEXT_GIB
    learner = _peak(plan).total_bytes / GIB + _CUDA_CONTEXT_GIB
    if resources.learner_gpus + num_engines * resources.rollout_gpus <= 1:
        return learner + num_engines * engine
    return max(learner, engine)


def _card_gib(config: RunConfig) -> float | None:
    """The card that the settings name, else the smallest that is there; None if none is known."""
    if config.resources.card is not None:
        return named_card(config.resources.card).memory_gib
    if config.resources.gpu_memory_gib is not None:
        return config.resources.gpu_memory_gib
    if (torch_version() or "").endswith("+cpu"):
        return None
    facts = read_device()
    return min((card.total_bytes / GIB for card in facts.cards), default=None) if facts else None


def disk_findings(config: RunConfig) -> Iterator[Finding]:
    """What training will write, where temporary files go, and when the disk would be full."""
    shape = model_shape(config)
    if shape is None:
        return
    try:
        num_steps = planned_steps(config)
    except ValueError:
        return  # said of the data
    plan = disk_plan(shape, config, num_steps)
    free = shutil.disk_usage(_existing(config.storage.root)).free
    at = plan.fills_at(free)
    said = (
        f"a checkpoint takes {_size(plan.checkpoint_bytes)}, those kept {_size(plan.kept_bytes)} "
        f"with the one being written; rollouts, tests and metrics {_size(plan.step_bytes)} a step "
        f"at most; {_size(plan.total_bytes)} after {num_steps:,} steps, {_size(free)} are free"
    )
    if at == 0:
        yield Finding(
            "disk plan",
            "fatal",
            said,
            "the checkpoints alone do not fit: lower checkpoints.keep_last, train adapters "
            "(model.lora_rank=64), or set storage.root to a larger disk",
        )
    elif at is not None:
        yield Finding("disk plan", "warning", said, f"the disk would be full at step {at:,}")
    else:
        yield Finding("disk plan", "ok", said)
    if plan.checkpoint_bytes > config.checkpoints.quota_bytes:
        yield Finding(
            "disk plan",
            "warning",
            f"checkpoints.quota_bytes={config.checkpoints.quota_bytes} is less than one checkpoint",
            f"latest and best stay all the same; set it to {3 * plan.checkpoint_bytes} or more",
        )
    width = 4 if config.model.dtype == "float32" else 2
    yield from _temporary_files(width * shape.num_parameters)


def _temporary_files(sent_bytes: int) -> Iterator[Finding]:
    """Ray keeps weights on their way to the engines in shared memory, else in its temp folder."""
    shared, spill = Path("/dev/shm"), Path(tempfile.gettempdir())
    wanted = _VERSIONS_IN_FLIGHT * sent_bytes
    free = shutil.disk_usage(shared).free if shared.is_dir() else 0
    if wanted <= free:
        return
    on_disk = shutil.disk_usage(spill).free
    yield Finding(
        "disk plan",
        "warning" if wanted <= on_disk else "fatal",
        f"Ray wants {_size(wanted)} for weights on their way, {shared} has {_size(free)} free; it "
        f"will use {spill} ({_size(on_disk)} free), which is slower",
        "give the machine (or container: --shm-size) more shared memory",
    )


def model_shape(config: RunConfig) -> ModelShape | None:
    """The model's shape; None where nothing here tells it, or its kind cannot be planned."""
    path = config.model.path
    if path is None:
        return ModelShape.of_base_model(config.base_model)
    folder = Path(path).expanduser()
    if not folder.is_dir() and (known := known_shape(path)) is not None:
        return known
    try:
        return ModelShape.from_folder(folder)
    except (OSError, ValueError):
        return None


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _size(num_bytes: int) -> str:
    """Bytes as a person says them: `18 MB`, `37.0 GB`."""
    if num_bytes < 10**9:
        return f"{max(num_bytes / 10**6, 0.1):.3g} MB"
    return f"{num_bytes / 10**9:.1f} GB"
