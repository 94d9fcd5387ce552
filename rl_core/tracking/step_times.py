"""Seconds of a step by token, in processes that have no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_core.types import Rollout

_PER_RESPONSE_TOKEN = ("gen",)
_PER_TOKEN = ("old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")


def per_token_ms(seconds: Mapping[str, float], rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns `timing_per_token_ms/*` as verl counts: `gen` by sampled tokens, the rest by all.

    Args:
        seconds: `timing_s/*` of a step.
        rollouts: the step's.
    """
    completions = [rollout.completion for rollout in rollouts]
    num_tokens = sum(len(rollout.prompt_ids) for rollout in rollouts)
    num_tokens += sum(len(completion.response_ids) for completion in completions)
    num_sampled = sum(completion.num_sampled for completion in completions)
    divisors = dict.fromkeys(_PER_RESPONSE_TOKEN, num_sampled)
    divisors |= dict.fromkeys(_PER_TOKEN, num_tokens)
    return {
        f"timing_per_token_ms/{phase}": 1e3 * seconds[f"timing_s/{phase}"] / divisor
        for phase, divisor in divisors.items()
        if f"timing_s/{phase}" in seconds
    }
