"""Hours and price of training: estimated before and during a run, held to a budget."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from rl_core.config.operations import BudgetConfig
from rl_core.system.words import duration

_S_PER_HOUR = 3_600.0
MEASURED_FROM: Final = 5
"""Steps after which the measured rate replaces the estimate: the first ones warm up."""
_LAST_STEPS: Final = 50
"""The rate is measured over this many last steps, since responses become longer."""


@dataclass(frozen=True)
class Spread:
    """A typical value between a lower and an upper bound."""

    low: float
    typical: float
    high: float

    def times(self, factor: float) -> "Spread":
        """Returns the number and its bounds, multiplied."""
        return Spread(self.low * factor, self.typical * factor, self.high * factor)


def measured_step(step_seconds: Iterable[float], *, at_least: int = MEASURED_FROM) -> Spread | None:
    """Returns the median and quartiles of the last `timing_s/step`; None if there are too few.

    Tests and saves are not part of every step: the median leaves them out.
    """
    last = list(step_seconds)[-_LAST_STEPS:]
    return Spread(*np.quantile(last, (0.25, 0.5, 0.75)).tolist()) if len(last) >= at_least else None


def time_left(
    step_seconds: Sequence[float],
    num_steps: int,
    planned: Spread | None,
    budget: BudgetConfig,
    *,
    running_s: float = 0.0,
) -> str | None:
    """Returns time and price of the remaining steps, as text.

    From the fifth step on: the mean of the last 50 steps, tests and saves included. Before: the
    plan of `roofline.py` or, if there is none or a step was slower than it allows (it knows of no
    user's reward), the mean of the steps so far. The step that has been `running_s` counts as one
    of them once it is the slowest.
    """
    slowest_s = max(step_seconds, default=0.0 if planned is None else planned.high)
    if running_s > slowest_s:
        step_seconds = [*step_seconds, running_s]
    is_planned = planned is not None and max(step_seconds, default=0.0) <= planned.high
    if planned is not None and is_planned and len(step_seconds) < MEASURED_FROM:
        return f"{time_and_price_range(planned.times(num_steps), budget)} left by estimate"
    if not step_seconds:
        return None
    last = step_seconds[-_LAST_STEPS:]
    return f"{time_and_price(sum(last) / len(last) * num_steps, budget)} left"


def price(seconds: float, budget: BudgetConfig) -> float | None:
    """Returns the price of so many seconds, in `budget.currency`; None without a price per hour."""
    rate = budget.price_per_hour
    return None if rate is None else seconds / _S_PER_HOUR * rate


def price_in_words(seconds: float, budget: BudgetConfig) -> str | None:
    """Returns the price with its currency: `55.7 EUR`, `0.08 EUR`; None if `price` is None."""
    cost = price(seconds, budget)
    if cost is None:
        return None
    return f"{cost:.1f} {budget.currency}" if cost >= 10 else f"{cost:.2f} {budget.currency}"


def time_and_price(seconds: float, budget: BudgetConfig) -> str:
    """Returns time and price as text: `25.5 h, 55.7 EUR`; only the time if no price is known."""
    return ", ".join(filter(None, (duration(seconds), price_in_words(seconds, budget))))


def time_and_price_range(seconds: Spread, budget: BudgetConfig) -> str:
    """Returns time and price with bounds: `25.5 h (9.0 to 80.1 h), 55.7 EUR (19.6 to 174.6 EUR)`.

    Bounds that would print like the typical number are left out.
    """
    times = (seconds.typical, seconds.low, seconds.high)
    ranges = [_with_bounds([duration(s) for s in times])]
    if budget.price_per_hour is not None:
        ranges.append(_with_bounds([price_in_words(s, budget) or "" for s in times]))
    return ", ".join(ranges)


def seconds_in_words(step: Spread) -> str:
    """Returns seconds with bounds in the same way: `8.1 s (4.8 to 22.2)`."""
    times = (step.typical, step.low, step.high)
    typical, low, high = (f"{s:.3g}" if s < 999.5 else f"{s:,.0f}" for s in times)
    return f"{typical} s" if low == typical == high else f"{typical} s ({low} to {high})"


def _with_bounds(words: Sequence[str]) -> str:
    typical, low, high = words
    if low == typical == high:
        return typical
    number, _, unit = low.rpartition(" ")
    return f"{typical} ({number if high.endswith(f' {unit}') else low} to {high})"


class Spending:
    """Time and price so far, with `step_seconds` of earlier attempts, and the budget's limits."""

    def __init__(self, budget: BudgetConfig, step_seconds: Sequence[float]) -> None:
        self._budget = budget
        self.seconds = sum(step_seconds)
        self._last_step_s = step_seconds[-1] if step_seconds else 0.0

    def __str__(self) -> str:
        """Returns time and price so far, as text."""
        return time_and_price(self.seconds, self._budget)

    def add_step(self, seconds: float) -> None:
        """Counts a step."""
        self.seconds += seconds
        self._last_step_s = seconds

    def limit_within(self, num_steps: int) -> str | None:
        """Returns, as text, the limit that `num_steps` more steps like the last exceed, or None."""
        seconds = self.seconds + num_steps * self._last_step_s
        budget = self._budget
        if budget.max_hours is not None and seconds > budget.max_hours * _S_PER_HOUR:
            return f"budget.max_hours={budget.max_hours:g}"
        cost = price(seconds, budget)
        if cost is not None and budget.max_cost is not None and cost > budget.max_cost:
            return f"budget.max_cost={budget.max_cost:g} {budget.currency}"
        return None
