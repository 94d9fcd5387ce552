"""Rollouts of further steps while the learner works on this one (`rollout.staleness`)."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

from rl_core.rollout.collector import Collected
from rl_core.types import Rollout

Clock = Callable[[str], AbstractContextManager[None]]


def steps_ahead(step: int, *, staleness: int, save_freq: int, last_step: int) -> range:
    """Returns which steps' rollouts may be begun while `step` is learned, if engines are free.

    The engines hold the policy of `step - 1` updates or a newer one. What they begin for step
    `step + staleness` is learned from when there are `staleness` updates more (AReaL,
    arXiv:2505.24298, section 5.1). None are begun for steps after a checkpoint before it is saved:
    what a resume finds there is all there is.
    """
    next_save = -(-step // save_freq) * save_freq
    return range(step + 1, min(step + staleness, next_save, last_step) + 1)


class RolloutsAhead:
    """Hands out the rollouts of each step, collected on demand or in the meantime."""

    def __init__(self, collect_step: Callable[[int, Clock], Collected]) -> None:
        self._collect_step = collect_step
        self._ahead: dict[int, Future[Collected]] = {}
        self._last: Future[Collected] | None = None

    def begin(self, steps: Iterable[int]) -> None:
        """Has rollouts of these steps collected one after the other, but those that are already."""
        for step in steps:
            if step not in self._ahead:
                before, self._last = self._last, Future()
                self._ahead[step] = self._last
                # A daemon thread: if the run fails, do not wait for it.
                args = (step, self._last, before)
                threading.Thread(target=self._run, args=args, daemon=True).start()

    def is_collecting(self) -> bool:
        """Says whether anything is being collected, or will be."""
        return any(not collected.done() for collected in self._ahead.values())

    def finish(self) -> None:
        """Waits until nothing is being collected, nor will be.

        Raises:
            Exception: what the collecting raised.
        """
        for collected in self._ahead.values():
            collected.result()

    def take(self, step: int, clock: Clock) -> Collected:
        """Returns a step's rollouts.

        Of rollouts from ahead the clock times, as `gen`, what was waited.
        """
        if step not in self._ahead:
            return self._collect_step(step, clock)
        with clock("gen"):
            return self._ahead.pop(step).result()

    def _run(self, step: int, ahead: Future[Collected], before: Future[Collected] | None) -> None:
        try:
            if before is not None:
                before.result()
            ahead.set_result(self._collect_step(step, lambda phase: nullcontext()))
        except BaseException as error:  # noqa: BLE001  # whatever it is, the waiting loop gets it
            ahead.set_exception(error)


def staleness_metrics(rollouts: Sequence[Rollout], step: int, *, limit: int) -> dict[str, float]:
    """Returns how stale a step's tokens are, in updates; where they must not be, nothing.

    A token's staleness is the number of updates between the policy that sampled it and the one
    that learns from it: step n, from 1, learns with the policy of n - 1 updates. So AReaL counts
    (arXiv:2505.24298, section 5.1), for each trajectory by its oldest token.
    `rollout/stale_tokens_frac` is the share of tokens that are not of the newest policy.

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
