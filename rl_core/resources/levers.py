"""The levers: every setting that makes room in memory, how far it goes, and what that costs.

The one place that knows them. fits.py searches them all before the start, oom_recovery.py pulls
those that leave the result alone after an error, and whoever words an advice asks one of these two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from rl_core.config.run import RunConfig
from rl_core.resources.memory_need import CUDA_GIB, ENGINE_ITSELF_GIB, longest_bytes
from rl_core.resources.memory_plan import ModelShape, compute_width
from rl_core.resources.placement import asked_at_a_time, sequences_at_a_time, shares_a_card

Value = bool | int | float | str
Settings = Mapping[str, Value]
"""New values of settings by name: `{"rollout.sleep": True}`."""
Steps = Callable[[RunConfig, ModelShape | None], Sequence[Value]]
"""A setting's values, the mildest first, that make more and more room; none where it does not."""
_MIB: Final = 2**20
_SHARE_STEP: Final = 0.05
_LEAST_SHARE: Final = 0.1
"""Of a card whose size or whose engine's needs nobody knows."""
_LEAST_KV_MIB: Final = 16
_LEAST_SEQUENCES: Final = 8
"""With fewer at a time, a step takes all night."""
_SEQUENCES_WAIT_BELOW: Final = 4
"""A cache for a quarter of the longest responses holds all, while they have the usual length."""
_BUSY_TOKENS: Final = 4_096
"""With fewer per pass, a card's matrix products are too small to keep it busy."""
_RANKS: Final = (64, 16)


@dataclass(frozen=True)
class Lever:
    """One setting, and what it costs to move it."""

    name: str
    steps: Steps
    costs: str
    """In words, and briefly."""
    keeps_result: bool = True
    """Whether the run learns the same with it, to rounding."""


def value_of(config: RunConfig, name: str) -> Any:
    """Returns a setting's value by its name, `rollout.sleep`."""
    section, field = name.split(".")
    return getattr(getattr(config, section), field)


def with_settings(config: RunConfig, settings: Settings) -> RunConfig | None:
    """Returns the run's settings with others in place, None where some exclude each other.

    `rollout.sleep` and `rollout.staleness` do, for one.
    """
    plain = config.model_dump()
    for name, value in settings.items():
        section, field = name.split(".")
        plain[section][field] = value
    try:
        return RunConfig.model_validate(plain)
    except ValidationError:
        return None


def with_unchecked(config: RunConfig, settings: Settings) -> RunConfig:
    """Returns the run's settings with others in place, not validated: a fiftieth of the time."""
    sections: dict[str, dict[str, Value]] = {}
    for name, value in settings.items():
        section, field = name.split(".")
        sections.setdefault(section, {})[field] = value
    return config.model_copy(
        update={
            section: getattr(config, section).model_copy(update=fields)
            for section, fields in sections.items()
        }
    )


def typed(settings: Settings) -> str:
    """Returns settings as one would type them: `model.gradient_checkpointing=true`."""
    return " ".join(f"{name}={_typed(value)}" for name, value in settings.items())


def _typed(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def _halves(value: int, least: int) -> list[int]:
    values = []
    while value > least:
        value = max(value // 2, least)
        values.append(value)
    return values


def _switch(is_on: bool, helps: bool) -> list[bool]:
    return [True] if helps and not is_on else []


def _shares(config: RunConfig, shape: ModelShape | None) -> list[float]:
    """Of the card, down to where one response of the longest still fits; up to there, if below."""
    if config.rollout.engine != "vllm" or not config.resources.rollout_gpus:
        return []
    now, least = config.rollout.gpu_memory_utilization, round(_share_for(config, shape, 1), 3)
    highest = now if now >= least else _roomy_share(config, shape) + _SHARE_STEP
    steps = [round(_SHARE_STEP * i, 2) for i in range(int(highest / _SHARE_STEP) + 1, 0, -1)]
    return [x for x in (*(x for x in steps if x > least), least) if x < min(highest, 1)]


def _roomy_shares(config: RunConfig, shape: ModelShape | None) -> list[float]:
    roomy = _roomy_share(config, shape)
    return [share for share in _shares(config, shape) if share >= roomy]


def _tight_shares(config: RunConfig, shape: ModelShape | None) -> list[float]:
    return [share for share in _shares(config, shape) if share < _roomy_share(config, shape)]


def _roomy_share(config: RunConfig, shape: ModelShape | None) -> float:
    """Returns the share of the card with which responses hardly wait for each other."""
    return _share_for(config, shape, sequences_at_a_time(config) // _SEQUENCES_WAIT_BELOW)


def _share_for(config: RunConfig, shape: ModelShape | None, num_sequences: int) -> float:
    """Returns the share of the card that holds the model, and so many of the longest responses."""
    card_gib = config.resources.planned_card_gib
    if shape is None or card_gib is None:
        return _LEAST_SHARE
    weights = shape.num_parameters * compute_width(config)
    sequences = max(num_sequences, 1) * longest_bytes(config, shape)
    held = (weights + sequences) / config.rollout.tensor_parallel_size
    return (held / 2**30 + ENGINE_ITSELF_GIB + CUDA_GIB) / card_gib


def _kv_cache(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """Down to two of the longest sequences: vLLM's blocks are never filled to the last token."""
    if shape is None or config.rollout.engine != "vllm" or config.resources.rollout_gpus:
        return []  # a cache too small is refused, so leave that of an unknown model
    least = max(_LEAST_KV_MIB, -(-2 * longest_bytes(config, shape) // _MIB))
    return _halves(config.rollout.kv_cache_mib, least)


def _sequences(config: RunConfig, shape: ModelShape | None) -> list[int]:
    return _halves(config.rollout.max_num_seqs, _LEAST_SEQUENCES)


def _planned_sequences(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """Not vLLM's: it takes a cache of a set size, however many responses share it."""
    if config.rollout.engine != "hf":
        return []
    return _halves(asked_at_a_time(config)[0], _LEAST_SEQUENCES)


def _engines(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """On a CPU all engines lie in one memory, each with its own weights."""
    return (
        []
        if config.resources.rollout_gpus
        else _halves(config.rollout.num_engines, config.rollout.min_engines or 1)
    )


def _sleep(config: RunConfig, shape: ModelShape | None) -> list[bool]:
    helps = config.rollout.engine == "vllm" and shares_a_card(config)
    return _switch(config.rollout.sleep, helps)


def _snapshot(config: RunConfig, shape: ModelShape | None) -> list[bool]:
    """A copy of weights and optimizers lies in the machine's memory while it is written."""
    return [False] if config.checkpoints.in_background else []


def _snapshot_beside(config: RunConfig, shape: ModelShape | None) -> list[bool]:
    """Of a learner that computes where the copy lies."""
    return [] if config.resources.learner_gpus else _snapshot(config, shape)


def _threads(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """On a CPU each thread has a micro-batch of its own, and the gradients of that."""
    resources = config.resources
    return [] if resources.learner_gpus else _halves(resources.learner_threads, 1)


def _more_ranks(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """Each has a share of what rests, and at least a prompt of an update, on a card of its own.

    Ranks on a CPU lie in one memory: more of them take more.
    """
    resources = config.resources
    if resources.learner_gpus != 1:
        return []
    more = (2 * resources.learner_ranks, 4 * resources.learner_ranks)
    return [number for number in more if number <= config.actor.mini_batch_size]


def _checkpointing(config: RunConfig, shape: ModelShape | None) -> list[bool]:
    return _switch(config.model.gradient_checkpointing, helps=True)


def _offload(config: RunConfig, shape: ModelShape | None) -> list[bool]:
    return _switch(config.resources.offload, config.resources.learner_gpus > 0)


def _micro_batches(config: RunConfig) -> list[int]:
    """Down to one row of the longest."""
    longest = config.data.max_prompt_length + config.data.max_response_length
    return _halves(config.actor.micro_batch_tokens, longest)


def _busy_micro_batches(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """On a CPU smaller ones cost nothing."""
    least = _BUSY_TOKENS if config.resources.learner_gpus else 0
    return [tokens for tokens in _micro_batches(config) if tokens >= least]


def _tiny_micro_batches(config: RunConfig, shape: ModelShape | None) -> list[int]:
    busy = _busy_micro_batches(config, shape)
    return [tokens for tokens in _micro_batches(config) if tokens not in busy]


def _optimizer(config: RunConfig, shape: ModelShape | None) -> list[str]:
    return ["adamw_8bit"] if config.actor.optimizer == "adamw" else []


def _shared_trunk(config: RunConfig, shape: ModelShape | None) -> list[bool]:
    return _switch(config.critic.share_trunk, config.algorithm.estimator == "gae")


def _ranks(config: RunConfig, shape: ModelShape | None) -> list[int]:
    rank = config.model.lora_rank
    return [lower for lower in _RANKS if not rank or lower < rank]


def _in_4bit(config: RunConfig, shape: ModelShape | None) -> list[bool]:
    """With adapters alone; without them its settings exclude each other."""
    return _switch(config.model.load_in_4bit, helps=True)


SHARE: Final = Lever("rollout.gpu_memory_utilization", _shares, "responses wait for each other")
KV_CACHE: Final = Lever("rollout.kv_cache_mib", _kv_cache, "responses wait for each other")
SEQUENCES: Final = Lever("rollout.max_num_seqs", _sequences, "fewer responses at a time")
ENGINES: Final = Lever("rollout.num_engines", _engines, "generation is half as fast")
SLEEP: Final = Lever("rollout.sleep", _sleep, "seconds per step to fall asleep and wake up")
SNAPSHOT: Final = Lever("checkpoints.in_background", _snapshot, "training waits for each save")
THREADS: Final = Lever("resources.learner_threads", _threads, "the learner is half as fast")
CHECKPOINTING: Final = Lever(
    "model.gradient_checkpointing", _checkpointing, "updates are a third slower"
)
OFFLOAD: Final = Lever(
    "resources.offload",
    _offload,
    "seconds per step, and the machine's memory, for what rests there",
)

LEVERS: Final[tuple[Lever, ...]] = (
    Lever("rollout.gpu_memory_utilization", _roomy_shares, "a KV cache just large enough"),
    Lever("actor.micro_batch_tokens", _busy_micro_batches, "more passes, hardly slower"),
    Lever("checkpoints.in_background", _snapshot_beside, SNAPSHOT.costs),
    KV_CACHE,
    Lever("rollout.max_num_seqs", _planned_sequences, SEQUENCES.costs),
    SLEEP,
    CHECKPOINTING,
    OFFLOAD,
    Lever("rollout.gpu_memory_utilization", _tight_shares, SHARE.costs),
    Lever("actor.micro_batch_tokens", _tiny_micro_batches, "passes too small for the card"),
    THREADS,
    ENGINES,
    Lever("resources.learner_ranks", _more_ranks, "a further card for each rank"),
    Lever(
        "actor.optimizer",
        _optimizer,
        "moments are rounded to 8 bits: another result, by bitsandbytes",
        keeps_result=False,
    ),
    Lever(
        "critic.share_trunk",
        _shared_trunk,
        "the critic becomes a value head on the actor: another result",
        keeps_result=False,
    ),
    Lever(
        "model.lora_rank",
        _ranks,
        "adapters learn, not the weights: another result, and actor.lr wants to be about ten times "
        "as high",
        keeps_result=False,
    ),
    Lever(
        "model.load_in_4bit",
        _in_4bit,
        "weights below adapters are rounded to 4 bits: another result, by bitsandbytes",
        keeps_result=False,
    ),
)
"""All of them, by what they cost: each more than all before it together.

First those that leave the result alone, by the time they take: what is nearly free, what costs a
part of each step, what may double it, what takes more cards. Then those that change what is
learned. A setting that is
nearly free at first and dear at last stands here twice.
"""
