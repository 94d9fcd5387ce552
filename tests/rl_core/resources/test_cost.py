import pytest
from pydantic import ValidationError

from rl_core.config.operations import BudgetConfig
from rl_core.resources.cost import (
    Spending,
    Spread,
    measured_step,
    seconds_in_words,
    time_and_price,
    time_and_price_range,
    time_left,
)

RENTED = BudgetConfig(price_per_hour=2.18)


def test_the_diary_is_worked_out_as_it_was_by_hand():
    # 170 steps of 32 took 25.43 min; an epoch of 327,680 has 10,240 steps.
    epoch_s = 25.43 * 60 / 170 * 327_680 / 32
    assert time_and_price(epoch_s, RENTED) == "25.5 h, 55.7 EUR"
    assert time_and_price(epoch_s, BudgetConfig()) == "25.5 h"
    assert time_and_price(600, BudgetConfig(price_per_hour=0.5, currency="$")) == "10 min, 0.08 $"


def test_the_step_that_would_go_beyond_the_budget_is_foreseen():
    hour = Spending(BudgetConfig(max_hours=1), [1_200.0])
    assert hour.limit_within(1) is None
    assert hour.limit_within(2) is None  # 3,600 s are allowed
    hour.add_step(1_201.0)
    assert hour.limit_within(1) == "budget.max_hours=1"
    assert str(hour) == "40 min"
    three = Spending(BudgetConfig(price_per_hour=2, max_cost=3, currency="USD"), [3_600.0])
    assert three.limit_within(1) == "budget.max_cost=3 USD"
    assert Spending(BudgetConfig(price_per_hour=1, max_cost=3), [3_600.0]).limit_within(1) is None


def test_a_cost_without_a_price_is_refused():
    with pytest.raises(ValidationError, match=r"max_cost=5 .* set budget\.price_per_hour"):
        BudgetConfig(max_cost=5)


def test_bounds_are_said_once_with_their_unit():
    hours = Spread(9.0, 25.5, 80.1).times(3_600)
    said = "25.5 h (9.0 to 80.1 h), 55.6 EUR (19.6 to 174.6 EUR)"
    assert time_and_price_range(hours, RENTED) == said
    assert time_and_price_range(Spread(40, 100, 7_200), BudgetConfig()) == "2 min (40 s to 2.0 h)"
    same = Spread(25.49, 25.5, 25.51).times(3_600)
    assert time_and_price_range(same, BudgetConfig()) == "25.5 h"
    assert seconds_in_words(Spread(4.77, 8.139, 22.2)) == "8.14 s (4.77 to 22.2)"
    assert seconds_in_words(Spread(2, 2, 3_500.4)) == "2 s (2 to 3,500)"


def test_steps_are_measured_from_the_fifth_on_without_tests_and_saves():
    assert measured_step([30.0, 10.0, 10.0, 11.0]) is None
    assert measured_step([30.0, 10.0, 10.0, 11.0, 12.0]) == Spread(10.0, 11.0, 12.0)
    assert measured_step([3.0], at_least=1) == Spread(3.0, 3.0, 3.0)
    assert measured_step([], at_least=1) is None
    # The last fifty: responses grow.
    assert measured_step([1.0] * 100 + [2.0] * 50) == Spread(2.0, 2.0, 2.0)


def test_what_is_left_without_a_plan_is_what_was_measured_so_far():
    assert time_left([], 10, None, RENTED) is None
    assert time_left([60.0, 120.0], 40, None, RENTED) == "60 min, 2.18 EUR left"


@pytest.mark.parametrize(
    ("steps", "planned", "running_s", "left"),
    [
        ([], Spread(1, 2, 4), 3.0, "20 s (10 to 40 s) left by estimate"),
        ([], Spread(1, 2, 4), 15.0, "2 min left"),  # a user's reward, of which no plan knows
        ([15.0], Spread(1, 2, 4), 0.0, "2 min left"),
        ([0.5] * 5, None, 0.4, "5 s left"),
        ([0.5] * 5, None, 15.5, "30 s left"),  # 10 steps of (5 x 0.5 + 15.5) / 6 s
    ],
)
def test_the_step_that_goes_on_counts_once_it_is_the_slowest(steps, planned, running_s, left):
    assert time_left(steps, 10, planned, BudgetConfig(), running_s=running_s) == left
