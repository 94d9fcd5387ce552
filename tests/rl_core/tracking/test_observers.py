import pytest

from rl_core.tracking.observers import BudgetLimit, StepObserver, all_of, per_token_ms
from tests.support.runs import new_run, run_config


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
    limited = run_config(budget={"max_hours": 1.0})
    budget = BudgetLimit(limited, run)
    assert budget.allows_a_step()
    budget.on_step(0, 9, {})
    budget.on_step(1, 9, {"timing_s/step": 1_000.0})
    assert not budget.wants_stop()  # the second, not counted yet, and the third: 3,000 s
    budget.on_step(2, 9, {"timing_s/step": 1_000.0})
    assert budget.wants_stop()
    said = "budget.max_hours=1 allows no step after 3 (33 min): training stopped there"
    assert budget.reason(3) == said
    run.metrics.append(1, {"timing_s/step": 2_000.0})
    assert not BudgetLimit(limited, run).allows_a_step()
    unlimited = BudgetLimit(run_config(), run)
    assert unlimited.allows_a_step()
    assert unlimited.reason(1) is None


def test_a_hacked_reward_ends_training_at_the_step_after_the_test_that_shows_it(tmp_path):
    run = new_run(tmp_path)
    settings = {"env": {"name": "countdown", "reward": ["a:f"]}}
    stops = run_config(**settings, budget={"stop_on_hacked_reward": True})
    budget, goes_on = BudgetLimit(stops, run), BudgetLimit(run_config(**settings), run)
    for step in range(31):
        metrics = {"critic/score/mean": 0.4 + step / 100, "timing_s/step": 1.0}
        if step % 5 == 0:
            metrics["val/accuracy"] = 0.2
        assert budget.wants_stop() == (step == 26)
        if budget.wants_stop():
            break
        run.metrics.append(step, metrics)
        budget.on_step(step, 30, metrics)
        goes_on.on_step(step, 30, metrics)
    assert goes_on.allows_a_step()
    limit = "budget.stop_on_hacked_reward=true"
    assert budget.limit == limit
    assert budget.reason(26) == (
        f"{limit} allows no step after 26 (critic/score/mean 0.435 -> 0.625, 6 tests: "
        "val/accuracy 0.200 -> 0.200): training stopped there"
    )
    assert str(budget.next_step(26)).endswith(
        "; the same command with budget.stop_on_hacked_reward=false continues from step 26"
    )
    later = BudgetLimit(stops, run)
    assert (later.allows_a_step(), later.limit) == (False, limit)


def test_times_per_token_by_hand(make_rollout):
    rollouts = [make_rollout([1, 2, 3], [4]), make_rollout([1], [2, 3, 4])]
    seconds = {"timing_s/gen": 0.4, "timing_s/update_actor": 0.8, "timing_s/step": 9.0}
    assert per_token_ms(seconds, rollouts) == pytest.approx(
        {"timing_per_token_ms/gen": 100.0, "timing_per_token_ms/update_actor": 100.0}
    )
