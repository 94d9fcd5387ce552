"""Hours and price of training: estimated before and during a run, held to a budget."""

from __future__ import annotations

from collections.abc import Sequence

from rl_core.upkeep_config import BudgetConfig

_S_PER_HOUR = 3_600.0


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
