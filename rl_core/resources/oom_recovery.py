"""Recovery: what the next attempt changes after one that ran out of memory.

Only levers that leave the result alone, never batches, lengths or learning rates; and only those
that make room where it was missing: what helps most there first, for each step costs an attempt.
Whoever says in words what helps asks here. Not here: what levers there are (levers.py), the plan
before the start (fits.py), and micro-batches, which need no attempt (microbatching.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.levers import (
    CHECKPOINTING,
    ENGINES,
    KV_CACHE,
    LEVERS,
    OFFLOAD,
    SEQUENCES,
    SHARE,
    SLEEP,
    SNAPSHOT,
    THREADS,
    Lever,
    Value,
    typed,
    value_of,
    with_settings,
)
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.placement import sequences_at_a_time, shares_a_card

Changes = dict[str, tuple[Value, Value]]
"""Settings by name, `rollout.kv_cache_mib`: the value before, and the one after."""

_RecoveryStep = Callable[[RunConfig, ModelShape | None], dict[str, Value]]
"""New values of settings; none where they are no news."""


def next_recovery_step(
    config: RunConfig, error: OutOfMemory, shape: ModelShape | None
) -> Changes | None:
    """Returns what the next attempt shall change, or None: nothing is left that helps.

    Each step moves settings one way only, so whoever goes on arrives at None.

    Args:
        config: the settings that did not fit, those of earlier steps in place.
        error: says in which phase or, of a killed process, in whose.
        shape: of the model, None if unknown; an engine must hold its longest sequence.
    """
    return next(iter(recovery_steps_left(config, error, shape)), None)


def recovery_steps_left(
    config: RunConfig, error: OutOfMemory, shape: ModelShape | None
) -> list[Changes]:
    """Returns the first step of each way that is left to help, the next step first."""
    left = []
    for step in _recovery_steps(error):
        changes = {name: (value_of(config, name), new) for name, new in step(config, shape).items()}
        if changes and _changed(config, changes) is not None:
            left.append(changes)
    return left


def with_changes(config: RunConfig, taken: Iterable[Changes]) -> RunConfig:
    """Returns the settings with all steps that were taken from settings like these.

    A step counts where its setting still has the value before it: of what a person has set anew
    since, nothing is changed.
    """
    for changes in taken:
        config = _changed(config, changes) or config
    return config


def in_words(changes: Mapping[str, tuple[Value, Value]]) -> str:
    """Returns the changes as one would type them: `model.gradient_checkpointing=true`."""
    return typed({name: new for name, (_, new) in changes.items()})


def remedies(config: RunConfig, error: OutOfMemory, shape: ModelShape | None = None) -> list[str]:
    """Returns, as one would type them, settings of which each makes room where it was missing.

    They are what a retry would do, and `beyond_recovery` is what none does by itself.
    """
    return [in_words(changes) for changes in recovery_steps_left(config, error, shape)]


def beyond_recovery(config: RunConfig, phase: str) -> list[str]:
    """Returns what makes room in a phase, and no retry would do by itself: it changes the result.

    Args:
        config: the settings in force.
        phase: where memory is short, as `OutOfMemory` names it.
    """
    shorter = ["a smaller data.max_response_length or data.max_prompt_length"]
    if phase in _ROLLOUT_PHASES:
        return shorter + (["a card of its own for the engine"] if shares_a_card(config) else [])
    return shorter + [
        f"{typed({lever.name: values[0]})} in a new run"
        for lever in LEVERS
        if not lever.keeps_result and (values := lever.steps(config, None))
        if config.model.lora_rank or lever.name != "model.load_in_4bit"  # nothing would learn
    ]


def nothing_smaller(config: RunConfig, phase: str, said: str) -> OutOfMemory:
    """Returns the error of a phase in which the least that can be computed did not fit.

    Args:
        config: the settings in force.
        phase: where memory is short, as `OutOfMemory` names it.
        said: by whoever wanted memory, and how small it was.
    """
    error = OutOfMemory(phase, said)
    helpful = [*remedies(config, error), *beyond_recovery(config, phase)]
    return OutOfMemory(phase, f"{said}. What helps: {' or '.join(helpful)}")


def _pull(lever: Lever) -> _RecoveryStep:
    """A step halves, where a lever has values: each costs an attempt."""

    def step(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
        values = lever.steps(config, shape)
        now = sequences_at_a_time(config) if lever is SEQUENCES else value_of(config, lever.name)
        smaller = [value for value in values if isinstance(value, bool | str) or value < now]
        halved = (value for value in smaller if isinstance(value, bool | str) or value <= now / 2)
        return {lever.name: next(halved, smaller[-1])} if smaller else {}

    return step


def _where(holds: Callable[[RunConfig], bool], *steps: _RecoveryStep) -> _RecoveryStep:
    """Some steps as one, of settings for which something holds."""

    def step(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
        if not holds(config):
            return {}
        return {name: new for one in steps for name, new in one(config, shape).items()}

    return step


def _learns_on_cpu(config: RunConfig) -> bool:
    return not config.resources.learner_gpus


def _generates_on_cpu(config: RunConfig) -> bool:
    return not config.resources.rollout_gpus


def _generates_beside_the_learner(config: RunConfig) -> bool:
    return shares_a_card(config) or (_learns_on_cpu(config) and _generates_on_cpu(config))


def _has_a_card_for_vllm(config: RunConfig) -> bool:
    return config.rollout.engine == "vllm" and not _generates_on_cpu(config)


def _smaller_rollout(config: RunConfig, shape: ModelShape | None) -> dict[str, Value]:
    """Halves what the engine keeps of responses in the making."""
    if _has_a_card_for_vllm(config):
        return _pull(SHARE)(config, shape)
    return _pull(KV_CACHE)(config, shape) | _pull(SEQUENCES)(config, shape)


_smaller_rollout_beside: Final = _where(_generates_beside_the_learner, _smaller_rollout)
_smaller_rollout_on_cpu: Final = _where(_generates_on_cpu, _smaller_rollout)
_FORWARD: Final = (
    _pull(THREADS),
    _pull(SLEEP),
    _where(_learns_on_cpu, _pull(SNAPSHOT)),  # a learner that computes where the copy lies
    _smaller_rollout_beside,
    _pull(OFFLOAD),
)
_BACKWARD: Final = (_pull(CHECKPOINTING), *_FORWARD)
_ROLLOUT: Final = (_smaller_rollout, _pull(ENGINES), _where(shares_a_card, _pull(OFFLOAD)))
_ROLLOUT_PHASES: Final = ("load_engine", "gen", "sync", "evaluate")
_RECOVERY_STEPS: Final[Mapping[str, tuple[_RecoveryStep, ...]]] = {
    "load_learner": (_smaller_rollout_beside,),
    "prepare": _FORWARD,
    "old_log_prob": _FORWARD,
    "ref": _FORWARD,
    "values": _FORWARD,
    "update": _BACKWARD,
    "update_critic": _BACKWARD,
    "update_actor": _BACKWARD,
    "weights": (_pull(SNAPSHOT), _smaller_rollout_on_cpu),
    "save": (_pull(SNAPSHOT), _smaller_rollout_on_cpu),
    **dict.fromkeys(_ROLLOUT_PHASES, _ROLLOUT),
}
"""By phase, what helps most, or costs least time, first."""
_MACHINE: Final = (
    _pull(SNAPSHOT),
    _pull(THREADS),
    _pull(CHECKPOINTING),
    _smaller_rollout_on_cpu,
    _pull(ENGINES),
)
"""Where a process was killed because the machine's memory ran low."""


def _recovery_steps(error: OutOfMemory) -> tuple[_RecoveryStep, ...]:
    if "cache blocks" in error.detail.lower():  # vLLM's share is too small already
        return (_pull(SEQUENCES),)
    return _RECOVERY_STEPS.get(error.phase, _MACHINE)


def _changed(config: RunConfig, changes: Changes) -> RunConfig | None:
    """Returns the settings with the changes where the value before is theirs; None if not valid."""
    due = {name: new for name, (old, new) in changes.items() if value_of(config, name) == old}
    return with_settings(config, due)
