"""Hours and price before the start, from a run of the same shape."""

from __future__ import annotations

import json
from pathlib import Path

from rl_core.config import RunConfig
from rl_core.tracking import RunFolder
from tasks.finding import Finding
from tasks.preflight import preflight
from tasks.time_plan import seconds_per_step

DIARY = {
    "data": {"train_batch_size": 32},
    "actor": {"mini_batch_size": 32},
    "trainer": {"total_epochs": 2},
    "budget": {"price_per_hour": 2.18},
}


def config(root: Path, **changes: object) -> RunConfig:
    env = {"name": "countdown", "max_operands": 3}
    return RunConfig.model_validate({"storage": {"root": root}, "env": env, **DIARY, **changes})


def ran(settings: RunConfig, run_id: str, step_s: list[float | None]) -> None:
    run = RunFolder.create(settings.model_copy(update={"run_id": run_id}))
    lines = [
        {"step": step, "epoch": 0, "timing_s/step": seconds} for step, seconds in enumerate(step_s)
    ]
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def time_finding(settings: RunConfig) -> Finding:
    (found,) = [finding for finding in preflight(settings) if finding.check == "time"]
    return found


def test_without_a_run_of_this_shape_nothing_is_claimed(tmp_path: Path) -> None:
    ran(config(tmp_path, data={"train_batch_size": 64}), "other", [None, 1.0])
    assert seconds_per_step(config(tmp_path)) is None
    assert time_finding(config(tmp_path)).level == "ok"


def test_the_diary_comes_out_before_the_start(tmp_path: Path) -> None:
    per_step = 25.43 * 60 / 170
    # A step with a test and a save takes longer, and step 0 is a test alone.
    ran(config(tmp_path), "before", [99.0, per_step, per_step, 60.0, per_step, per_step])
    found = time_finding(config(tmp_path))
    assert found.level == "ok"
    assert "25.5 h, 55.7 EUR per epoch of 327,680 problems" in found.message
    assert "51.1 h, 111.3 EUR for 20,480 steps" in found.message
    assert "measured in run before" in found.message


def test_learning_rates_and_seeds_do_not_change_the_shape(tmp_path: Path) -> None:
    ran(config(tmp_path, seed=3, actor={"mini_batch_size": 32, "lr": 1e-5}), "a", [None, 2.0])
    assert seconds_per_step(config(tmp_path)) == ("a", 2.0)


def test_the_last_run_counts_and_broken_ones_are_passed_over(tmp_path: Path) -> None:
    ran(config(tmp_path), "a", [None, 2.0])
    ran(config(tmp_path), "b", [None, 3.0])
    ran(config(tmp_path), "c", [None])
    (tmp_path / "runs" / "d").mkdir()
    (tmp_path / "runs" / "d" / "config.yaml").write_text("[not, settings")
    assert seconds_per_step(config(tmp_path)) == ("b", 3.0)


def test_a_budget_that_ends_training_early_is_a_warning(tmp_path: Path) -> None:
    ran(config(tmp_path), "a", [None, 3.6])  # 20,480 steps are 20.48 h
    budget = {"max_hours": 20.4}
    found = time_finding(config(tmp_path, budget=budget))
    assert found.level == "warning"
    assert "budget.max_hours=20.4 will stop it earlier" in found.remedy
    assert time_finding(config(tmp_path, budget={"max_hours": 20.5})).level == "ok"
