"""Rollouts of further steps while the learner works on this one (`rollout.staleness`)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

from rl_core.rollout.collector import Collected

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
                # A daemon: should the run end by an error, nobody waits for what nobody wants.
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
