import json
from pathlib import Path
from typing import Any

import pytest

from rl_core.config.run import RunConfig
from rl_core.data.dataset import write_dataset
from rl_core.resources.cost import Spread
from rl_core.runs.run_folder import RunFolder
from tasks.generate import dataset_folder
from tasks.hours import StepEstimate, measured_before
from tasks.preflight import preflight, refuse_fatal
from tasks.preflight_checks import Finding, PreflightError
from tasks.preflight_checks.hours import estimate

DIARY = {
    "data": {"train_batch_size": 32},
    "actor": {"mini_batch_size": 32},
    "trainer": {"total_epochs": 2, "test_freq": 10**6, "test_problems": 1},
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


ON_A_CARD: dict[str, Any] = {
    "model": {"path": "Qwen/Qwen2.5-0.5B", "dtype": "bfloat16"},
    "resources": {"learner_gpus": 0.5, "rollout_gpus": 0.5, "card": "RTX 4090"},
}


def planned(settings: RunConfig) -> Spread:
    known = estimate(settings)
    assert known is not None
    return known.seconds


def test_without_a_run_of_this_shape_the_cpu_is_measured(tmp_path):
    ran(config(tmp_path, data={"train_batch_size": 64}), "other", [None, 1.0])
    assert measured_before(config(tmp_path)) is None
    found = time_finding(config(tmp_path))
    assert found.level == "ok"
    assert "(a roofline of this CPU, undisturbed)" in found.message
    assert "from step 5 on progress shows the measured time" in found.message
    assert "per epoch of 327,680 problems" in found.message
    assert "for 20,480 steps" in found.message
    step = planned(config(tmp_path))
    assert 0 < step.low < step.typical < step.high == 4 * step.low


def test_the_first_diary_is_planned_for_its_card(tmp_path):
    """25.5 h and 55.7 per epoch were worked out by hand afterwards."""
    assert "(a roofline of RTX 4090)" in time_finding(config(tmp_path, **ON_A_CARD)).message
    hours = planned(config(tmp_path, **ON_A_CARD)).times(327_680 / 32 / 3_600)
    assert hours.low < 25.5 < hours.high


def test_a_card_of_which_only_the_memory_is_known_has_no_rates(tmp_path):
    resources = {"learner_gpus": 0.5, "rollout_gpus": 0.5, "gpu_memory_gib": 24}
    found = time_finding(config(tmp_path, **(ON_A_CARD | {"resources": resources})))
    assert "the rates of the device are not known (resources.card=NAME plans" in found.message


@pytest.mark.parametrize(
    ("changes", "said", "steps"),
    [
        ({"env": {"name": "gsm8k", "source": "toy"}, "data": {"train_size": 8_000}}, "8,000", 31),
        ({"env": {"name": "gsm8k"}, "data": {}}, "7,473", 29),
        ({"data": {"train_size": 20_000}}, "20,000", 78),
    ],
)
def test_an_epoch_has_the_problems_of_its_env(tmp_path, changes, said, steps):
    found = time_finding(config(tmp_path, **changes))
    assert f"per epoch of {said} problems" in found.message
    assert f"for {2 * steps} steps of training" in found.message


def test_an_epoch_has_ones_own_problems(tmp_path):
    rows = [{"nums": [1, 2, n], "target": 3 + n} for n in range(10, 15)]
    for name, chosen in (("train", rows), ("test", rows[:1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in chosen))
    data = {"train_files": str(tmp_path / "train.jsonl"), "train_batch_size": 2}
    data |= {"max_response_length": 512}  # the home-made model reads no more than 1,024 tokens
    tests = {"test_files": str(tmp_path / "test.jsonl")}

    def own(**given: object) -> RunConfig:
        return config(tmp_path, data=data | given, actor={"mini_batch_size": 2})

    found = time_finding(own(**tests))
    assert "per epoch of 5 problems" in found.message
    assert "for 4 steps of training" in found.message
    # Once it is made it is counted: the problem that is tested, too, is not trained on.
    made = own(**tests)
    write_dataset(made.env, made.data, dataset_folder(made))
    assert "per epoch of 4 problems" in time_finding(made).message
    # The last of them are the test split.
    assert "3 problems" in time_finding(own(test_size=2)).message
    for settings, why in (
        (own(), "5 rows, 0 to train on and 1,024 to test of data.train_files: no step of "),
        (
            own(**tests, train_batch_size=6),
            "no step of data.train_batch_size=6 could be filled: set data.train_batch_size=4",
        ),
    ):
        findings = preflight(settings)
        assert [f.check for f in findings if f.level == "fatal"] == ["rows"]
        with pytest.raises(PreflightError, match=why):
            refuse_fatal(findings)


def test_the_diary_comes_out_before_the_start(tmp_path):
    per_step = 25.43 * 60 / 170
    # A step with a test and a save takes longer, and step 0 is a test alone.
    ran(config(tmp_path), "before", [99.0, per_step, per_step, 60.0, per_step, per_step])
    found = time_finding(config(tmp_path))
    assert found.level == "ok"
    assert "25.5 h, 55.7 EUR per epoch of 327,680 problems" in found.message
    assert "51.1 h, 111.3 EUR for 20,480 steps" in found.message
    assert "measured in run before" in found.message


def test_the_last_run_counts_and_broken_ones_are_passed_over(tmp_path):
    ran(config(tmp_path), "a", [None, 2.0])
    # Learning rates and seeds do not change the shape.
    ran(config(tmp_path, seed=3, actor={"mini_batch_size": 32, "lr": 1e-5}), "b", [None, 3.0])
    ran(config(tmp_path), "c", [None])
    (tmp_path / "runs" / "d").mkdir()
    (tmp_path / "runs" / "d" / "config.yaml").write_text("[not, settings")
    rate = StepEstimate(Spread(3.0, 3.0, 3.0), "measured in run b")
    assert measured_before(config(tmp_path)) == rate


def test_a_budget_that_ends_training_early_is_a_warning(tmp_path):
    ran(config(tmp_path), "a", [None, 3.6])  # 20,480 steps are 20.48 h
    budget = {"max_hours": 20.4}
    found = time_finding(config(tmp_path, budget=budget))
    assert found.level == "warning"
    assert "budget.max_hours=20.4 will stop it earlier" in found.remedy
    assert time_finding(config(tmp_path, budget={"max_hours": 20.5})).level == "ok"
