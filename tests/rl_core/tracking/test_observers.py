"""Several observers as one, and when a budget stops a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_core.config.operations import BudgetConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.observers import BudgetLimit, Caller, FreeDisk, Observers, StepObserver


class Stubborn(StepObserver):
    """Stops at once, and measures how often it was asked."""

    asked = 0

    def wants_stop(self) -> bool:
        self.asked += 1
        return True

    def measure(self) -> dict[str, float]:
        return {"asked": self.asked}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(RunConfig.model_validate({"storage": {"root": tmp_path}}))


def test_all_are_asked_and_told_in_their_order() -> None:
    heard: list[tuple[str, int]] = []
    stubborn, second = Stubborn(), Stubborn()
    observers = Observers(
        [
            stubborn,
            Caller(lambda step, last, metrics: heard.append(("one", step))),
            Caller(lambda step, last, metrics: heard.append(("two", last))),
            second,
        ]
    )
    assert observers.wants_stop()
    assert second.asked == 1
    assert observers.measure() == {"asked": 1}
    observers.on_step(3, 8, {})
    assert heard == [("one", 3), ("two", 8)]


def test_who_says_nothing_neither_stops_nor_measures() -> None:
    observers = Observers([Caller(lambda *_: None)])
    assert not observers.wants_stop()
    assert observers.measure() == {}


def test_a_budget_stops_before_the_step_that_would_exceed_it(run: RunFolder) -> None:
    budget = BudgetLimit(BudgetConfig(max_hours=1.0), run)
    assert budget.allows_a_step()
    budget.on_step(0, 9, {})
    budget.on_step(1, 9, {"timing_s/step": 1_000.0})
    assert not budget.wants_stop()  # the second, not counted yet, and the third: 3,000 s
    budget.on_step(2, 9, {"timing_s/step": 1_000.0})
    assert budget.wants_stop()
    said = "budget.max_hours=1 allows no step after 3 (33 min): training stopped there"
    assert budget.reason(3) == said


def test_earlier_steps_count(run: RunFolder) -> None:
    run.metrics.append(1, {"timing_s/step": 2_000.0})
    budget = BudgetLimit(BudgetConfig(max_hours=1.0), run)
    assert not budget.allows_a_step()
    unlimited = BudgetLimit(BudgetConfig(), run)
    assert unlimited.allows_a_step()
    assert unlimited.reason(1) is None


def test_free_room_is_measured(run: RunFolder) -> None:
    assert FreeDisk(run).measure()["disk/free_gib"] > 0
