"""Levers: every setting that saves memory, the values it can take, and what they cost.

They have three uses: `cheapest_fit` searches `LEVERS` for settings that fit, a retry takes the next
step of a ladder in `HELPS`, and advice names the levers that are left (oom_recovery.py).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import ValidationError

from rl_core.config.run import RunConfig
from rl_core.resources.memory_need import CUDA_GIB, least_engine_gib, longest_bytes
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.placement import asked_at_a_time, sequences_at_a_time, shares_a_card

Value = bool | int | float | str
Settings = Mapping[str, Value]
"""New values of settings by name: `{"rollout.sleep": True}`."""
Steps = Callable[[RunConfig, ModelShape | None], Sequence[Value]]
"""Values of a setting that save more and more memory, the mildest first; empty if none does."""
Owner = Literal["learner", "engine", "machine"]
"""Whose memory: a learner or an engine on a CPU uses the machine's."""
_SHARE_STEP: Final = 0.05
_LEAST_SHARE: Final = 0.1
"""The smallest share of a card, if its size or the engine's needs are unknown."""
_LEAST_KV_MIB: Final = 16
_LEAST_SEQUENCES: Final = 8
"""With fewer at a time, a step would take hours."""
_SEQUENCES_WAIT_BELOW: Final = 4
"""A cache for a quarter of the responses at full length holds all of them at their usual length."""
_BUSY_TOKENS: Final = 4_096
"""With fewer per pass, a card's matrix products are too small to keep it busy."""


@dataclass(frozen=True)
class Lever:
    """One setting, its next values, and what they cost."""

    name: str
    steps: Steps
    costs: str
    frees: Owner | None = None
    """Whose memory it frees; None: that of any phase."""


def value_of(config: RunConfig, name: str) -> Any:
    """Returns a setting's value by its name, `rollout.sleep`."""
    section, field = name.split(".")
    return getattr(getattr(config, section), field)


def with_settings(config: RunConfig, settings: Settings) -> RunConfig | None:
    """Returns a copy with other settings, or None if they exclude each other."""
    changed = with_unchecked(config, settings)
    try:
        return RunConfig.model_validate(changed.model_dump(warnings=False))
    except ValidationError:
        return None


def with_unchecked(config: RunConfig, settings: Settings) -> RunConfig:
    """Returns a copy with other settings, without validation, which takes 50 times as long."""
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
    """Returns settings as overrides to type: `model.gradient_checkpointing=true`."""
    return " ".join(
        f"{name}={f'{value:g}' if isinstance(value, float) else str(value).lower()}"
        for name, value in settings.items()
    )


def _switch(
    name: str,
    costs: str,
    where: Callable[[RunConfig], object] = lambda c: True,
    *,
    to: Value = True,
    frees: Owner | None = None,
) -> Lever:
    def steps(config: RunConfig, shape: ModelShape | None) -> list[Value]:
        return [to] if value_of(config, name) != to and where(config) else []

    return Lever(name, steps, costs, frees)


def _halves(value: int, least: int) -> list[int]:
    values = []
    while value > least:
        value = max(value // 2, least)
        values.append(value)
    return values


def _has_share(config: RunConfig) -> bool:
    """Whether an engine has a share of a card; what the model leaves of it is the KV cache."""
    return config.rollout.engine == "vllm" and config.resources.rollout_gpus > 0


def _shares(config: RunConfig, shape: ModelShape | None) -> list[float]:
    """Returns smaller shares; the last just holds one longest response. A share below it rises."""
    if not _has_share(config):
        return []
    now = config.rollout.gpu_memory_utilization
    least = round(_share_for(config, shape, 1), 3)
    highest = now if now >= least else _roomy_share(config, shape) + _SHARE_STEP
    steps = [round(_SHARE_STEP * i, 2) for i in range(int(highest / _SHARE_STEP) + 1, 0, -1)]
    return [x for x in (*(x for x in steps if x > least), least) if x < min(highest, 1)]


def _roomy_share(config: RunConfig, shape: ModelShape | None) -> float:
    """Returns the share of the card with which responses hardly wait for each other."""
    return _share_for(config, shape, sequences_at_a_time(config) // _SEQUENCES_WAIT_BELOW)


def _share_for(config: RunConfig, shape: ModelShape | None, num_sequences: int) -> float:
    """Returns the share of the card that holds the model and so many of the longest responses."""
    card_gib = config.resources.planned_card_gib
    if shape is None or card_gib is None:
        return _LEAST_SHARE
    return (least_engine_gib(shape, config, max(num_sequences, 1)) + CUDA_GIB) / card_gib


def _kv_cache(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """Returns caches for two longest sequences or more: vLLM never fills all blocks completely."""
    if shape is None or config.rollout.engine != "vllm" or config.resources.rollout_gpus:
        return []  # vLLM refuses a cache that is too small: an unknown model keeps its own
    least = max(_LEAST_KV_MIB, -(-2 * longest_bytes(config, shape) // 2**20))
    return _halves(config.rollout.kv_cache_mib, least)


def _threads(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """On a CPU each thread of a single learner holds the activations of its own micro-batch."""
    resources = config.resources
    side_by_side = not resources.learner_gpus and resources.learner_ranks == 1
    return _halves(resources.learner_threads, 1) if side_by_side else []


def _more_ranks(config: RunConfig, shape: ModelShape | None) -> list[int]:
    """Each needs its own card (on a CPU, more ranks take more memory) and a prompt per update."""
    now = config.resources.learner_ranks
    on_whole_cards = config.resources.learner_gpus == 1
    return [n for n in (2 * now, 4 * now) if on_whole_cards and n <= config.actor.mini_batch_size]


def _micro_batches(config: RunConfig) -> list[int]:
    """Returns smaller micro-batches, down to one longest row."""
    return _halves(
        config.actor.micro_batch_tokens,
        config.data.max_prompt_length + config.data.max_response_length,
    )


def _busy_tokens(config: RunConfig) -> int:
    """Returns the size below which a card is not busy; on a CPU smaller ones cost nothing."""
    return _BUSY_TOKENS if config.resources.learner_gpus else 0


_SHARE: Final = Lever(
    "rollout.gpu_memory_utilization", _shares, "responses wait for each other", frees="engine"
)
_KV_CACHE: Final = replace(_SHARE, name="rollout.kv_cache_mib", steps=_kv_cache)
_SEQUENCES: Final = Lever(
    "rollout.max_num_seqs",
    lambda c, _: _halves(c.rollout.max_num_seqs, _LEAST_SEQUENCES),
    "fewer responses at a time",
)
_ENGINES: Final = Lever(  # on a CPU all use one memory, each with its own weights
    "rollout.num_engines",
    lambda c, _: [] if c.resources.rollout_gpus else _halves(c.rollout.num_engines, 1),
    "generation is half as fast",
)
_SNAPSHOT: Final = _switch(
    "checkpoints.in_background", "training waits for each save", to=False, frees="machine"
)
_THREADS: Final = Lever("resources.learner_threads", _threads, "the learner is half as fast")
SLEEP: Final = _switch(
    "rollout.sleep",
    "seconds per step to fall asleep and wake up",
    lambda c: c.rollout.engine == "vllm" and shares_a_card(c),
)
CHECKPOINTING: Final = _switch(
    "model.gradient_checkpointing", "updates are a third slower", frees="learner"
)
OFFLOAD: Final = _switch(
    "resources.offload",
    "seconds per step, and the machine's memory, for what rests there",
    lambda c: c.resources.learner_gpus,
    frees="learner",
)

OTHER_RESULT: Final[tuple[Lever, ...]] = (
    _switch(
        "actor.optimizer",
        "moments are rounded to 8 bits: another result, by bitsandbytes",
        to="adamw_8bit",
    ),
    Lever(
        "model.lora_rank",
        lambda c, _: [x for x in (64, 16) if x < (c.model.lora_rank or math.inf)],
        "adapters learn, not the weights: another result, and actor.lr should be about ten times "
        "as high",
    ),
    # Only with adapters: without them, validation refuses it.
    _switch(
        "model.load_in_4bit",
        "weights below adapters are rounded to 4 bits: another result, by bitsandbytes",
    ),
    _switch(
        "teacher.load_in_4bit",
        "the teacher is rounded to 4 bits: another result, by bitsandbytes",
        lambda c: c.teacher.path is not None,
    ),
)
"""Levers that change what is learned; with all others a run learns the same, up to rounding."""

LEVERS: Final[tuple[Lever, ...]] = (
    replace(
        _SHARE,
        steps=lambda c, s: [x for x in _shares(c, s) if x >= _roomy_share(c, s)],
        costs="a KV cache just large enough",
    ),
    Lever(
        "actor.micro_batch_tokens",
        lambda c, _: [x for x in _micro_batches(c) if x >= _busy_tokens(c)],
        "more passes, hardly slower",
    ),
    _switch(_SNAPSHOT.name, _SNAPSHOT.costs, lambda c: not c.resources.learner_gpus, to=False),
    _KV_CACHE,
    replace(  # not for vLLM: its cache has a fixed size, however many responses share it
        _SEQUENCES,
        steps=lambda c, _: (
            _halves(asked_at_a_time(c)[0], _LEAST_SEQUENCES) if c.rollout.engine == "hf" else []
        ),
    ),
    SLEEP,
    CHECKPOINTING,
    OFFLOAD,
    replace(_SHARE, steps=lambda c, s: [x for x in _shares(c, s) if x < _roomy_share(c, s)]),
    Lever(
        "actor.micro_batch_tokens",
        lambda c, _: [x for x in _micro_batches(c) if x < _busy_tokens(c)],
        "passes too small for the card",
    ),
    _THREADS,
    _ENGINES,
    Lever("resources.learner_ranks", _more_ranks, "a further card for each rank"),
    *OTHER_RESULT,
)
"""Levers that preflight tries, cheapest first: each costs more than all before it together.

First the nearly free ones, then those that cost a part of each step, may double it, take more
cards, or change the result. A setting that is nearly free at first and dear later is listed twice.
"""

Ladder = tuple[tuple[Lever, ...], ...]
"""Levers that a retry moves, in this order; one step moves all levers of a tuple together."""
_CACHE: Final = (
    _SHARE,
    _KV_CACHE,
    Lever(
        _SEQUENCES.name,
        lambda c, s: [] if _has_share(c) else _SEQUENCES.steps(c, s),
        _SEQUENCES.costs,
        frees="engine",
    ),
)
_SMALLER: Final = Lever(  # a single process reduces its own within the attempt
    "actor.micro_batch_tokens",
    lambda c, _: _micro_batches(c) if c.resources.learner_ranks > 1 else [],
    "more passes",
    frees="learner",
)
_PASS: Final[Ladder] = ((_SMALLER,), (_THREADS,), (SLEEP,), (_SNAPSHOT,), _CACHE, (OFFLOAD,))
_UPDATE: Final[Ladder] = ((_SMALLER,), (CHECKPOINTING,), *_PASS[1:])
_GENERATE: Final[Ladder] = (_CACHE, (_ENGINES,), (OFFLOAD,))
HELPS: Final[Mapping[str, tuple[Owner, Ladder]]] = {
    "load_learner": ("learner", (_CACHE,)),
    **dict.fromkeys(("prepare", "old_log_prob", "ref", "teacher", "values"), ("learner", _PASS)),
    **dict.fromkeys(("update", "update_critic", "update_actor"), ("learner", _UPDATE)),
    **dict.fromkeys(("weights", "save"), ("machine", ((_SNAPSHOT,), _CACHE))),
    **dict.fromkeys(("load_engine", "gen", "sync", "evaluate"), ("engine", _GENERATE)),
    "cache blocks": ("engine", ((_SEQUENCES,),)),
    "killed": ("machine", ((_SNAPSHOT,), (_THREADS,), (CHECKPOINTING,), _CACHE, (_ENGINES,))),
}
"""By phase: whose memory it uses, and its levers; those that help most, or cost least, first.

Two keys are not phases: `cache blocks` (vLLM has no room left for its cache), and `killed` (a
process was killed because the machine's memory ran low).
"""


@dataclass(frozen=True)
class Proposal:
    """Settings to change, and what a run with them needs."""

    changes: Settings
    """By name, the cheapest first; empty if the run fits without changes."""
    costs: Sequence[str]
    """What each change costs, as text."""
    config: RunConfig
    """With the changes, validated."""
    need_gib: float
    fits: bool
    """False: no settings fit, and these come closest."""

    @property
    def overrides(self) -> str:
        """The changes as one line to paste."""
        return typed(self.changes)


def cheapest_fit(
    config: RunConfig,
    shape: ModelShape | None,
    need_gib: Callable[[RunConfig], float],
    limit_gib: float,
    levers: Sequence[Lever] = LEVERS,
) -> Proposal:
    """Returns the cheapest changes with which the run fits, or those that come closest.

    Each lever must cost more than all before it together; `need_gib` plans a config's memory.
    """
    closest: Proposal | None = None
    for changes, costs in _by_cost(config, shape, levers):
        needed = need_gib(with_unchecked(config, changes))
        if needed > limit_gib and closest is not None and needed >= closest.need_gib:
            continue
        changed = with_settings(config, changes)
        if changed is None:
            continue
        closest = Proposal(changes, costs, changed, need_gib(changed), needed <= limit_gib)
        if closest.fits:
            break
    assert closest is not None, "settings without changes are valid"
    return closest


def _by_cost(
    config: RunConfig, shape: ModelShape | None, levers: Sequence[Lever]
) -> Iterator[tuple[dict[str, Value], list[str]]]:
    """Yields all combinations of changes with their costs, the cheapest first."""
    choices = [[(lever, value) for value in lever.steps(config, shape)] for lever in levers]
    # The last factor of a product changes fastest: it is the cheapest lever.
    for chosen in itertools.product(*([None, *steps] for steps in reversed(choices))):
        moved = [step for step in reversed(chosen) if step is not None]
        changes = {lever.name: value for lever, value in moved}
        if len(changes) == len(moved):  # else two levers moved one setting: the dearer counts
            yield changes, [lever.costs for lever, _ in moved]
