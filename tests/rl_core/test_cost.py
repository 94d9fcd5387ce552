"""Hours, prices and budgets: by hand, and as the diary worked them out afterwards."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rl_core.cost import Spending, duration, price, time_and_price
from rl_core.upkeep_config import BudgetConfig

RENTED = BudgetConfig(price_per_hour=2.18)


@pytest.mark.parametrize(
    ("seconds", "text"), [(89.4, "89 s"), (90, "2 min"), (5_399, "90 min"), (91_800, "25.5 h")]
)
def test_durations_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_diary_is_worked_out_as_it_was_by_hand() -> None:
    # 170 steps of 32 took 25.43 min; an epoch of 327,680 has 10,240 steps.
    epoch_s = 25.43 * 60 / 170 * 327_680 / 32
    assert time_and_price(epoch_s, RENTED) == "25.5 h, 55.7 EUR"


def test_without_a_price_there_is_none() -> None:
    assert price(3_600, BudgetConfig()) is None
    assert time_and_price(3_600, BudgetConfig()) == "60 min"


def test_small_prices_keep_their_cents() -> None:
    assert time_and_price(600, BudgetConfig(price_per_hour=0.5, currency="$")) == "10 min, 0.08 $"


def test_the_step_that_would_go_beyond_the_budget_is_foreseen() -> None:
    hour = Spending(BudgetConfig(max_hours=1), [1_200.0])
    assert hour.limit_within(1) is None
    assert hour.limit_within(2) is None  # 3,600 s are allowed
    hour.add_step(1_201.0)
    assert hour.limit_within(1) == "budget.max_hours=1"
    assert str(hour) == "40 min"


def test_a_price_is_a_limit_too() -> None:
    three = Spending(BudgetConfig(price_per_hour=2, max_cost=3, currency="USD"), [3_600.0])
    assert three.limit_within(1) == "budget.max_cost=3 USD"
    assert Spending(BudgetConfig(price_per_hour=1, max_cost=3), [3_600.0]).limit_within(1) is None


def test_a_cost_without_a_price_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"max_cost=5 .* set budget\.price_per_hour"):
        BudgetConfig(max_cost=5)
