"""How old the policies are that a step's rollouts were sampled by, in updates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rl_core.types import Rollout


def staleness_metrics(rollouts: Sequence[Rollout], step: int, *, limit: int) -> dict[str, float]:
    """Returns how stale a step's tokens are; where they must not be, nothing.

    A token's staleness is the number of updates between the policy that sampled it and the one
    that learns from it: step n learns with the policy of n - 1 updates. So AReaL counts
    (arXiv:2505.24298, section 5.1), for each trajectory by its oldest token.
    `step` is counted from 1; `limit` is `rollout.staleness`.

    Returns:
        `rollout/staleness_mean` and `_max`, over tokens; `rollout/stale_tokens_frac`, the share of
        tokens that are not of the newest policy.

    Raises:
        RuntimeError: a token is staler than the limit, or from a policy that is yet to be.
    """
    tokens: Counter[int] = Counter()
    for rollout in rollouts:
        for policy, number in rollout.completion.policy_runs:
            tokens[step - 1 - policy] += number
    if not 0 <= min(tokens) <= max(tokens) <= limit:
        wrong = max(tokens) if max(tokens) > limit else min(tokens)
        raise RuntimeError(
            f"step {step} would learn from {tokens[wrong]} tokens of policy {step - 1 - wrong}, "
            f"{wrong} updates behind its own: rollout.staleness={limit} allows {limit}. An engine "
            "holds other weights than it was given"
        )
    if limit == 0:
        return {}
    total = tokens.total()
    return {
        "rollout/staleness_mean": sum(age * n for age, n in tokens.items()) / total,
        "rollout/staleness_max": max(tokens),
        "rollout/stale_tokens_frac": 1 - tokens[0] / total,
    }
