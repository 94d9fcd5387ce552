"""Hours and price of training: estimated before and during a run, held to a budget."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

from rl_core.config.operations import BudgetConfig

_S_PER_HOUR = 3_600.0
MEASURED_FROM: Final = 5
"""Steps after which what was measured counts, not what was estimated: the first warm up."""
_LAST_STEPS: Final = 50
"""That count: the last, since responses grow."""


@dataclass(frozen=True)
class Spread:
    """A number that is not known exactly."""

    low: float
    typical: float
    high: float

    def times(self, factor: float) -> Spread:
        """Returns it as many times."""
        return Spread(self.low * factor, self.typical * factor, self.high * factor)


def measured_step(step_seconds: Iterable[float], *, at_least: int = MEASURED_FROM) -> Spread | None:
    """Returns the median of the last steps and their quartiles; None where too few are measured.

    Tests and saves are not part of every step: the median leaves them out.

    Args:
        step_seconds: `timing_s/step`, in order.
        at_least: so many steps.
    """
    last = list(step_seconds)[-_LAST_STEPS:]
    if len(last) < at_least:
        return None
    if len(last) == 1:
        return Spread(last[0], last[0], last[0])
    low, _, high = quantiles(last, n=4, method="inclusive")
    return Spread(low, median(last), high)


def time_left(
    step_seconds: Sequence[float], num_steps: int, planned: Spread | None, budget: BudgetConfig
) -> str | None:
    """Returns how long so many more steps take and what they cost, in words.

    Measured from the fifth step on, tests and saves included; before that as it was planned, and
    without a plan as the steps so far took.

    Args:
        step_seconds: of the steps so far, in order.
        num_steps: that are left.
        planned: seconds per step before training, see `roofline.py`.
        budget: whose price is said.
    """
    if planned is not None and len(step_seconds) < MEASURED_FROM:
        return f"{time_and_price_range(planned.times(num_steps), budget)} left by estimate"
    if not step_seconds:
        return None
    last = step_seconds[-_LAST_STEPS:]
    return f"{time_and_price(sum(last) / len(last) * num_steps, budget)} left"


def duration(seconds: float) -> str:
    """Returns a duration as a person says it: `40 s`, `12 min`, `3.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / _S_PER_HOUR:.1f} h"


def price(seconds: float, budget: BudgetConfig) -> float | None:
    """Returns what so many seconds of the machine cost, in `budget.currency`; None without one."""
    rate = budget.price_per_hour
    return None if rate is None else seconds / _S_PER_HOUR * rate


def price_in_words(seconds: float, budget: BudgetConfig) -> str | None:
    """Returns the price with its currency: `55.7 EUR`, `0.08 EUR`; None without one."""
    cost = price(seconds, budget)
    if cost is None:
        return None
    return f"{cost:.1f} {budget.currency}" if cost >= 10 else f"{cost:.2f} {budget.currency}"


def time_and_price(seconds: float, budget: BudgetConfig) -> str:
    """Returns both in words: `25.5 h, 55.7 EUR`; the duration alone where no price is known."""
    return ", ".join(filter(None, (duration(seconds), price_in_words(seconds, budget))))


def time_and_price_range(seconds: Spread, budget: BudgetConfig) -> str:
    """Returns both with their bounds: `25.5 h (9.0 to 80.1 h), 55.7 EUR (19.6 to 174.6 EUR)`.

    Bounds that are said as the typical number is are left out.
    """
    said = [_with_bounds([duration(s) for s in (seconds.typical, seconds.low, seconds.high)])]
    if budget.price_per_hour is not None:
        prices = [
            price_in_words(s, budget) or "" for s in (seconds.typical, seconds.low, seconds.high)
        ]
        said.append(_with_bounds(prices))
    return ", ".join(said)


def seconds_in_words(step: Spread) -> str:
    """Returns seconds with their bounds: `8.1 s (4.8 to 22.2)`; without those that say the same."""
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
    """What training has taken so far, and whether another step fits into the budget.

    Args:
        budget: the limits.
        step_seconds: of the steps before this attempt, in their order.
    """

    def __init__(self, budget: BudgetConfig, step_seconds: Sequence[float]) -> None:
        self._budget = budget
        self.seconds = sum(step_seconds)
        self._last_step_s = step_seconds[-1] if step_seconds else 0.0

    def __str__(self) -> str:
        """Returns time and price so far, in words."""
        return time_and_price(self.seconds, self._budget)

    def add_step(self, seconds: float) -> None:
        """Counts a step."""
        self.seconds += seconds
        self._last_step_s = seconds

    def limit_within(self, num_steps: int) -> str | None:
        """Returns the limit that so many steps like the last would exceed, in words, or None."""
        seconds, budget = self.seconds + num_steps * self._last_step_s, self._budget
        if budget.max_hours is not None and seconds > budget.max_hours * _S_PER_HOUR:
            return f"budget.max_hours={budget.max_hours:g}"
        cost = price(seconds, budget)
        if cost is not None and budget.max_cost is not None and cost > budget.max_cost:
            return f"budget.max_cost={budget.max_cost:g} {budget.currency}"
        return None
