"""Recovery: what the next attempt changes after one that ran out of memory, and what to advise.

Retries move only levers that keep the result, never batches, lengths or learning rates. Not here:
the list of levers (levers.py), and micro-batches, which need no new attempt (microbatching.py).
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.levers import (
    HELPS,
    OTHER_RESULT,
    Lever,
    Owner,
    Value,
    typed,
    value_of,
    with_settings,
)
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.placement import sequences_at_a_time, shares_a_card

Changes = dict[str, tuple[Value, Value]]
"""Settings by name, `rollout.kv_cache_mib`: the value before, and the one after."""
_MOVED_BY_RETRIES: Final = {
    lever.name for _, ladder in HELPS.values() for levers in ladder for lever in levers
}


def next_recovery_step(
    config: RunConfig, error: OutOfMemory, shape: ModelShape | None
) -> Changes | None:
    """Returns what the next attempt changes, or None if nothing is left that helps.

    Each step moves settings in one direction only, so repeated steps end at None.
    """
    return next(iter(recovery_steps_left(config, error, shape)), None)


def recovery_steps_left(
    config: RunConfig, error: OutOfMemory, shape: ModelShape | None
) -> list[Changes]:
    """Returns the first step of each rung of the ladder that can still help, in order."""
    has_no_cache = "cache blocks" in error.detail.lower()
    owner, ladder = HELPS.get("cache blocks" if has_no_cache else error.phase, HELPS["killed"])
    left = []
    for levers in ladder:
        changes: Changes = {}
        for lever in levers:
            if lever.frees is None or _memory(config, lever.frees) == _memory(config, owner):
                changes |= _step(lever, config, shape)
        if changes and _changed(config, changes) is not None:
            left.append(changes)
    return left


def with_changes(config: RunConfig, taken: Iterable[Changes]) -> RunConfig:
    """Returns the settings after all steps that earlier attempts took.

    A step changes a setting only if it still has the value from before: what you set since stays.
    They come from a run's folder, so nothing counts that no retry changes: not what names code.
    """
    for changes in taken:
        by_retries = {name: change for name, change in changes.items() if name in _MOVED_BY_RETRIES}
        config = _changed(config, by_retries) or config
    return config


def in_words(changes: Mapping[str, tuple[Value, Value]]) -> str:
    """Returns the changes as overrides to type: `model.gradient_checkpointing=true`."""
    return typed({name: new for name, (_, new) in changes.items()})


def remedies(config: RunConfig, error: OutOfMemory, shape: ModelShape | None = None) -> list[str]:
    """Returns the changes that retries could make, as overrides to type, the next one first."""
    return [in_words(changes) for changes in recovery_steps_left(config, error, shape)]


def beyond_recovery(config: RunConfig, phase: str) -> list[str]:
    """Returns what saves memory in a phase but changes the result: no retry does it."""
    shorter = ["a smaller data.max_response_length or data.max_prompt_length"]
    if HELPS.get(phase, HELPS["killed"])[0] == "engine":
        return shorter + (["a card of its own for the engine"] if shares_a_card(config) else [])
    return shorter + [
        f"{typed({lever.name: values[0]})} in a new run"
        for lever in OTHER_RESULT
        if (values := lever.steps(config, None))
        if config.model.lora_rank or lever.name != "model.load_in_4bit"  # nothing would learn
    ]


def nothing_smaller(config: RunConfig, phase: str, reason: str) -> OutOfMemory:
    """Returns the error of a phase whose smallest piece of work did not fit."""
    helpful = [*remedies(config, OutOfMemory(phase, reason)), *beyond_recovery(config, phase)]
    return OutOfMemory(phase, f"{reason}. What helps: {' or '.join(helpful)}")


def _memory(config: RunConfig, owner: Owner) -> str:
    """Returns the name of the memory that the owner uses; equal names are the same memory."""
    if owner == "learner" and config.resources.learner_gpus:
        return "the learner's card"
    if owner == "engine" and config.resources.rollout_gpus:
        return "the learner's card" if shares_a_card(config) else "a card"
    return "the machine"


def _step(lever: Lever, config: RunConfig, shape: ModelShape | None) -> Changes:
    """Returns the first value of at most half, else the last: each step costs an attempt."""
    old = now = value_of(config, lever.name)
    if lever.name == "rollout.max_num_seqs":
        now = sequences_at_a_time(config)
    values = lever.steps(config, shape)
    smaller = [value for value in values if isinstance(value, bool | str) or value < now]
    halved = (value for value in smaller if isinstance(value, bool | str) or value <= now / 2)
    return {lever.name: (old, next(halved, smaller[-1]))} if smaller else {}


def _changed(config: RunConfig, changes: Changes) -> RunConfig | None:
    """Returns the settings after the changes whose old values they have; None if not valid."""
    due = {name: new for name, (old, new) in changes.items() if value_of(config, name) == old}
    return with_settings(config, due)
