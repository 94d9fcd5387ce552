"""Rollouts of the next step while the learner works on this one (`rollout.overlap`)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext

from rl_core.rollout.collector import Collected

Clock = Callable[[str], AbstractContextManager[None]]


class RolloutsAhead:
    """Hands out the rollouts of each step, collected on demand or in the meantime.

    Args:
        collect_step: returns the rollouts of a step, timed by a clock.
    """

    def __init__(self, collect_step: Callable[[int, Clock], Collected]) -> None:
        self._collect_step = collect_step
        self._step: int | None = None
        self._ahead: Future[Collected]

    def begin(self, step: int) -> None:
        """Starts to collect a step's rollouts, with the weights that the engines hold now."""
        self._step, self._ahead = step, Future()
        # A daemon: should the run end by an error, nobody waits for what nobody wants.
        threading.Thread(target=self._run, args=(step, self._ahead), daemon=True).start()

    def finish(self) -> None:
        """Waits until nothing is being collected: before the engines get new weights.

        Raises:
            Exception: what the collecting raised.
        """
        if self._step is not None:
            self._ahead.result()

    def take(self, step: int, clock: Clock) -> tuple[Collected, int]:
        """Returns a step's rollouts, and the step whose update made the policy that wrote them.

        Args:
            step: counted from 1.
            clock: times `gen` and `reward`; of rollouts from ahead, as `gen`, what was waited.
        """
        if self._step != step:
            return self._collect_step(step, clock), step - 1
        self._step = None
        with clock("gen"):
            return self._ahead.result(), step - 2

    def _run(self, step: int, ahead: Future[Collected]) -> None:
        try:
            ahead.set_result(self._collect_step(step, lambda phase: nullcontext()))
        except BaseException as error:  # noqa: BLE001  # whatever it is, the waiting loop gets it
            ahead.set_exception(error)
