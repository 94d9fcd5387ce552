import pytest

from rl_core.config.operations import BudgetConfig
from rl_core.tracking.observers import BudgetLimit, StepObserver, all_of, per_token_ms
from tests.support.runs import new_run


def test_all_are_asked_and_told_in_their_order():
    asked: list[str] = []
    heard: list[tuple[str, int]] = []

    def stubborn(name: str) -> StepObserver:
        return StepObserver(
            wants_stop=lambda: not asked.append(name),
            measure=lambda: {"asked": len(asked), name: 1},
        )

    observers = all_of(
        [
            stubborn("first"),
            StepObserver(on_step=lambda step, last, metrics: heard.append(("one", step))),
            StepObserver(on_step=lambda step, last, metrics: heard.append(("two", last))),
            stubborn("second"),
        ]
    )
    assert observers.wants_stop()
    assert asked == ["first", "second"]
    assert observers.measure() == {"asked": 2, "first": 1, "second": 1}
    observers.on_step(3, 8, {})
    assert heard == [("one", 3), ("two", 8)]


def test_a_budget_stops_before_the_step_that_would_exceed_it_and_counts_earlier_steps(tmp_path):
    run = new_run(tmp_path)
    budget = BudgetLimit(BudgetConfig(max_hours=1.0), run)
    assert budget.allows_a_step()
    budget.on_step(0, 9, {})
    budget.on_step(1, 9, {"timing_s/step": 1_000.0})
    assert not budget.wants_stop()  # the second, not counted yet, and the third: 3,000 s
    budget.on_step(2, 9, {"timing_s/step": 1_000.0})
    assert budget.wants_stop()
    said = "budget.max_hours=1 allows no step after 3 (33 min): training stopped there"
    assert budget.reason(3) == said
    run.metrics.append(1, {"timing_s/step": 2_000.0})
    assert not BudgetLimit(BudgetConfig(max_hours=1.0), run).allows_a_step()
    unlimited = BudgetLimit(BudgetConfig(), run)
    assert unlimited.allows_a_step()
    assert unlimited.reason(1) is None


def test_times_per_token_by_hand(make_rollout):
    rollouts = [make_rollout([1, 2, 3], [4]), make_rollout([1], [2, 3, 4])]
    seconds = {"timing_s/gen": 0.4, "timing_s/update_actor": 0.8, "timing_s/step": 9.0}
    assert per_token_ms(seconds, rollouts) == pytest.approx(
        {"timing_per_token_ms/gen": 100.0, "timing_per_token_ms/update_actor": 100.0}
    )
