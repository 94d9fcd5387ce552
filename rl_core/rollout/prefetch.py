"""Rollouts of the next step while the learner works on this one (`rollout.staleness=1`)."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

from rl_core.rollout.collector import Collected
from rl_core.types import Rollout

Clock = Callable[[str], AbstractContextManager[None]]


class RolloutsAhead:
    """Hands out the rollouts of each step, collected on demand or ahead of time."""

    def __init__(self, collect_step: Callable[[int, Clock], Collected]) -> None:
        self._collect_step = collect_step
        self._ahead: Future[Collected] | None = None

    def begin(self, step: int) -> None:
        """Starts to collect the rollouts of a step; `take` must be called for this step next."""
        self._ahead = ahead = Future[Collected]()

        def run() -> None:
            try:
                ahead.set_result(self._collect_step(step, lambda phase: nullcontext()))
            except BaseException as error:  # noqa: BLE001  # whatever it is, the waiting loop gets it
                ahead.set_exception(error)

        # A daemon thread: if the run fails, do not wait for it.
        threading.Thread(target=run, daemon=True).start()

    def is_collecting(self) -> bool:
        """Returns whether anything is being collected."""
        return self._ahead is not None and not self._ahead.done()

    def finish(self) -> None:
        """Waits until nothing is being collected, and raises what that raised."""
        if self._ahead is not None:
            self._ahead.result()

    def take(self, step: int, clock: Clock) -> Collected:
        """Returns a step's rollouts; if collected ahead, `gen` is the time of waiting for them."""
        ahead = self._ahead
        self._ahead = None
        if ahead is None:
            return self._collect_step(step, clock)
        with clock("gen"):
            return ahead.result()


def staleness_metrics(rollouts: Sequence[Rollout], step: int, *, limit: int) -> dict[str, float]:
    """Returns how stale a step's tokens are, in updates; nothing if `limit` is 0.

    A token's staleness is the number of updates between the policy that sampled it and the one
    that learns from it: step n, from 1, learns with the policy of n - 1 updates. AReaL counts
    in the same way (arXiv:2505.24298, section 5.1), for each trajectory by its oldest token.
    `rollout/stale_tokens_frac` is the share of tokens that are not of the newest policy.

    Raises:
        RuntimeError: a token is staler than the limit, or from a newer policy than the step's own.
    """
    tokens: Counter[int] = Counter()
    for rollout in rollouts:
        completion = rollout.completion
        tokens[step - 1 - completion.policy_version] += completion.num_sampled
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
