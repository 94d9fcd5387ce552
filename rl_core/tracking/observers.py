"""What goes on beside a step: one protocol for what measures, stops and hears of the steps.

The loop (trainer.py) asks and tells all its observers in their order; who they are is said in
training.py, where a training process is wired.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from rl_core.config.operations import BudgetConfig
from rl_core.resources.cost import Spending
from rl_core.resources.token_budgets import log_out_of_memory
from rl_core.runs.run_folder import RunFolder
from rl_core.system.signals import StopSignals

OnStep = Callable[[int, int, dict[str, float]], None]
"""Called with (step, last step, metrics); step 0 is the test before the first step."""


class StepObserver(Protocol):
    """What goes on beside a step; who inherits says only what he has to say."""

    def wants_stop(self) -> bool:
        """Says whether the step that ends shall be the last; asked before it is saved."""
        return False

    def measure(self) -> Mapping[str, float]:
        """Returns what else to log of the step that ends."""
        return {}

    def on_step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Hears of a step that is done, logged, and where it is due being saved.

        Args:
            step: counted from 1; 0 is the first test.
            last_step: of the run.
            metrics: all of the step's.
        """
        return


class Observers:
    """Several observers as one.

    Args:
        observers: asked and told in this order.
    """

    def __init__(self, observers: Sequence[StepObserver]) -> None:
        self._observers = observers

    def wants_stop(self) -> bool:
        """Says whether any wants to; all are asked."""
        answers = [observer.wants_stop() for observer in self._observers]
        return any(answers)

    def measure(self) -> dict[str, float]:
        """Returns what all of them measure."""
        return {k: x for observer in self._observers for k, x in observer.measure().items()}

    def on_step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Tells all of them."""
        for observer in self._observers:
            observer.on_step(step, last_step, metrics)


class Caller(StepObserver):
    """Tells a function of each step.

    Args:
        function: a parent process's ear, a test's.
    """

    def __init__(self, function: OnStep) -> None:
        self._function = function

    def on_step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Calls the function."""
        self._function(step, last_step, metrics)


class OutOfMemoryLog(StepObserver):
    """Says in the log which phases of a step ran out of memory, and did not fail for it."""

    def on_step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Looks at the metrics of memory."""
        log_out_of_memory(step, metrics)


class FreeDisk(StepObserver):
    """Measures the room that a run's disk has left.

    Args:
        run: on that disk.
    """

    def __init__(self, run: RunFolder) -> None:
        self._run = run

    def measure(self) -> dict[str, float]:
        """Returns `disk/free_gib`."""
        return {"disk/free_gib": self._run.free_gib()}


class StopOnSignal(StepObserver):
    """Stops when the process was asked to.

    Args:
        signals: whose block is entered.
    """

    def __init__(self, signals: StopSignals) -> None:
        self._signals = signals

    def wants_stop(self) -> bool:
        """Says whether a signal came."""
        return self._signals.requested()


class BudgetLimit(StepObserver):
    """Stops where another step would exceed the run's hours or price.

    Args:
        budget: the limits.
        run: whose earlier steps count.
    """

    def __init__(self, budget: BudgetConfig, run: RunFolder) -> None:
        self._spending = Spending(budget, run.metrics.values("timing_s/step"))
        self._limit: str | None = None

    def wants_stop(self) -> bool:
        """Says whether the step that ends, not counted yet, and another are too much."""
        return self._exceeds(2)

    def on_step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Counts the step's seconds."""
        self._spending.add_step(metrics.get("timing_s/step", 0.0))

    def allows_a_step(self) -> bool:
        """Says whether one more step fits, before any is under way."""
        return not self._exceeds(1)

    def reason(self, step: int) -> str | None:
        """Returns in words why no step after this one is allowed; None where the limit allows."""
        if self._limit is None:
            return None
        return (
            f"{self._limit} allows no step after {step} ({self._spending}): training stopped there"
        )

    def _exceeds(self, num_steps: int) -> bool:
        self._limit = self._spending.limit_within(num_steps)
        return self._limit is not None
