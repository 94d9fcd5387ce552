"""The ladder: what the next attempt changes after one that ran out of memory.

Only settings that leave the result alone, never batches, lengths or learning rates; and only those
that make room where it was missing. Not here: micro-batches, which need no attempt (fitting.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from rl_core.config import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.memory_plan import ModelShape

Value = bool | int | float
Changes = dict[str, tuple[Value, Value]]
"""Settings by name, `rollout.kv_cache_mib`: the value before, and the one after."""

_Rung = Callable[[RunConfig, ModelShape | None], dict[str, Value]]
"""New values of settings; those that are no news do not count."""
_MIB: Final = 2**20
_LEAST_SHARE: Final = 0.1
"""Of a card whose size or whose engine's needs nobody knows."""
_ENGINE_ITSELF_GIB: Final = 1.5
"""On a card, beside weights and KV cache: what CUDA and a step of the engine take."""
_LEAST_KV_MIB: Final = 16
_LEAST_SEQUENCES: Final = 8
"""With fewer at a time, a step takes all night."""


def next_rung(config: RunConfig, error: OutOfMemory, shape: ModelShape | None) -> Changes | None:
    """Returns what the next attempt shall change, or None: nothing is left that helps.

    Each rung moves settings one way only, so whoever climbs on arrives at None.

    Args:
        config: the settings that did not fit, those of earlier rungs in place.
        error: says in which phase or, of a killed process, in whose.
        shape: of the model, None if unknown; an engine must hold its longest sequence.
    """
    return next(_rungs_left(config, error, shape), None)


def rungs_left(config: RunConfig, error: OutOfMemory, shape: ModelShape | None) -> list[Changes]:
    """Returns the first step of each way that is left to help, the next rung first."""
    return list(_rungs_left(config, error, shape))


def with_changes(config: RunConfig, taken: Iterable[Changes]) -> RunConfig:
    """Returns the settings with all rungs that were taken from settings like these.

    A rung counts where its setting still has the value before it: of what a person has set anew
    since, nothing is changed.
    """
    for changes in taken:
        config = _changed(config, changes) or config
    return config


def in_words(changes: Mapping[str, tuple[Value, Value]]) -> str:
    """Returns the changes as one would type them: `model.gradient_checkpointing=true`."""
    return " ".join(f"{name}={_typed(new)}" for name, (_, new) in changes.items())


def _rungs_left(
    config: RunConfig, error: OutOfMemory, shape: ModelShape | None
) -> Iterator[Changes]:
    for rung in _ladder(error):
        changes = {
            name: (_value(config, name), new)
            for name, new in rung(config, shape).items()
            if _value(config, name) != new
        }
        if changes and _changed(config, changes) is not None:
            yield changes


def _checkpointing(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    return {"model.gradient_checkpointing": True}


def _fewer_threads(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    """On a CPU each thread has a micro-batch of its own, and the gradients of that."""
    if config.resources.learner_gpus:
        return {}
    return {"resources.learner_threads": max(config.resources.learner_threads // 2, 1)}


def _no_snapshot(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    """A copy of weights and optimizers lies in the machine's memory while it is written."""
    return {"checkpoints.in_background": False}


def _no_snapshot_beside(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    """Helps a learner that computes where the copy lies."""
    return {} if config.resources.learner_gpus else _no_snapshot(config, shape)


def _sleep(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    if not _share_a_card(config) or config.rollout.engine != "vllm":
        return {}
    return {"rollout.sleep": True}


def _smaller_rollout(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    """Halves what the engine keeps of responses in the making."""
    rollout = config.rollout
    if rollout.engine != "vllm":
        return _fewer_sequences(config, shape)
    if config.resources.rollout_gpus:
        share = round(max(rollout.gpu_memory_utilization / 2, _least_share(config, shape)), 3)
        return {"rollout.gpu_memory_utilization": min(share, rollout.gpu_memory_utilization)}
    kv_mib = max(rollout.kv_cache_mib // 2, _least_kv_mib(config, shape))
    return {"rollout.kv_cache_mib": min(kv_mib, rollout.kv_cache_mib)} | _fewer_sequences(
        config, shape
    )


def _fewer_sequences(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    num_rollouts = config.data.train_batch_size * config.algorithm.group_size
    at_a_time = min(config.rollout.max_num_seqs, num_rollouts)
    return {"rollout.max_num_seqs": max(at_a_time // 2, min(at_a_time, _LEAST_SEQUENCES))}


def _smaller_rollout_beside(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    """Helps a learner that shares the engine's memory."""
    on_cpu = not (config.resources.learner_gpus or config.resources.rollout_gpus)
    return _smaller_rollout(config, shape) if on_cpu or _share_a_card(config) else {}


def _smaller_rollout_on_cpu(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    return {} if config.resources.rollout_gpus else _smaller_rollout(config, shape)


def _fewer_engines(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    """On a CPU all engines lie in one memory, each with its own weights."""
    if config.resources.rollout_gpus:
        return {}
    return {"rollout.num_engines": max(config.rollout.num_engines // 2, 1)}


def _offload(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    return {"resources.offload": True} if config.resources.learner_gpus else {}


def _offload_beside(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    return _offload(config, shape) if _share_a_card(config) else {}


_FORWARD: Final = (
    _fewer_threads,
    _sleep,
    _no_snapshot_beside,
    _smaller_rollout_beside,
    _offload,
)
_BACKWARD: Final = (_checkpointing, *_FORWARD)
_ROLLOUT: Final = (_smaller_rollout, _fewer_engines, _offload_beside)
_LADDERS: Final[Mapping[str, tuple[_Rung, ...]]] = {
    "load_learner": (_smaller_rollout_beside,),
    "prepare": _FORWARD,
    "old_log_prob": _FORWARD,
    "ref": _FORWARD,
    "values": _FORWARD,
    "update": _BACKWARD,
    "update_critic": _BACKWARD,
    "update_actor": _BACKWARD,
    "weights": (_no_snapshot, _smaller_rollout_on_cpu),
    "save": (_no_snapshot, _smaller_rollout_on_cpu),
    "load_engine": _ROLLOUT,
    "gen": _ROLLOUT,
    "sync": _ROLLOUT,
    "evaluate": _ROLLOUT,
}
"""By phase, what helps most, or costs least time, first."""
_MACHINE: Final = (
    _no_snapshot,
    _fewer_threads,
    _checkpointing,
    _smaller_rollout_on_cpu,
    _fewer_engines,
)
"""Where a process was killed because the machine's memory ran low."""


def _ladder(error: OutOfMemory) -> tuple[_Rung, ...]:
    if "cache blocks" in error.detail.lower():  # vLLM's share is too small already
        return (_fewer_sequences,)
    return _LADDERS.get(error.phase, _MACHINE)


def _share_a_card(config: RunConfig) -> bool:
    """Ray puts shares of less than a card on the same one."""
    resources = config.resources
    return 0 < resources.learner_gpus < 1 and 0 < resources.rollout_gpus < 1


def _least_share(config: RunConfig, shape: ModelShape | None) -> float:
    card_gib = config.resources.gpu_memory_gib
    if shape is None or card_gib is None:
        return _LEAST_SHARE
    weights = shape.num_parameters * _width(config)
    needed = (weights + _longest_bytes(config, shape)) / 2**30 + _ENGINE_ITSELF_GIB
    return needed / card_gib


def _least_kv_mib(config: RunConfig, shape: ModelShape | None) -> int:
    """Two of the longest sequences: vLLM's blocks are never filled to the last token."""
    if shape is None:
        return config.rollout.kv_cache_mib  # a cache too small is refused, so leave it
    return max(_LEAST_KV_MIB, -(-2 * _longest_bytes(config, shape) // _MIB))


def _longest_bytes(config: RunConfig, shape: ModelShape) -> int:
    """Keys and values of the longest prompt and response."""
    num_tokens = config.data.max_prompt_length + config.data.max_response_length
    per_token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_size
    return num_tokens * per_token * _width(config)


def _width(config: RunConfig) -> int:
    return 4 if config.model.dtype == "float32" else 2


def _value(config: RunConfig, name: str) -> Any:
    section, field = name.split(".")
    return getattr(getattr(config, section), field)


def _changed(config: RunConfig, changes: Changes) -> RunConfig | None:
    """Returns the settings with the changes, None where some exclude each other.

    `rollout.sleep` and `rollout.overlap` do, for one.
    """
    settings = config.model_dump()
    for name, (old, new) in changes.items():
        section, field = name.split(".")
        if settings[section][field] == old:
            settings[section][field] = new
    try:
        return RunConfig.model_validate(settings)
    except ValidationError:
        return None


def _typed(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
