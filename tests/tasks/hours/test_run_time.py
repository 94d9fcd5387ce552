from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.config.run import RunConfig
from rl_core.resources.cost import Spread
from rl_core.runs.run_folder import RunFolder
from tasks.hours import last_step_of, left_of, steps_in_words
from tasks.importers.console_log import import_log
from tasks.preflight_checks.hours import plan_steps
from tasks.report import write_report
from tests.support.runs import new_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = new_run(
        tmp_path,
        env={"name": "countdown", "max_operands": 3},
        data={"train_batch_size": 2},
        actor={"mini_batch_size": 2},
        trainer={"total_epochs": 2},
        budget={"price_per_hour": 36.0},
    )
    pq.write_table(pa.table({"x": [0] * 21}), tmp_path / "train.parquet")
    run.update(data=str(tmp_path))
    return run


def step(run: RunFolder, *seconds: float) -> None:
    first = len(run.metrics.read()) + 1
    for number, taken in enumerate(seconds, start=first):
        run.metrics.append(number, {"timing_s/step": taken})


def test_a_plan_counts_until_five_steps_are_measured(run):
    assert (last_step_of(run), left_of(run), steps_in_words(run)) == (2 * 10, None, None)
    run.update(planned_step_s=Spread(5.0, 20.0, 100.0), planned_from="a roofline of T4")
    assert left_of(run) == "7 min (2 to 33 min), 4.00 EUR (1.00 to 20.0 EUR) left by estimate"
    assert steps_in_words(run) == "planned: 20 s (5 to 100) (a roofline of T4) per step"
    step(run, 30.0, 10.0, 10.0, 10.0)
    assert left_of(run) == "5 min (80 s to 27 min), 3.20 EUR (0.80 to 16.0 EUR) left by estimate"
    step(run, 15.0)
    assert left_of(run) == "4 min, 2.25 EUR left"  # 15 steps of 75 / 5 s
    said = "10 s (10 to 15) per step, planned: 20 s (5 to 100) (a roofline of T4)"
    assert steps_in_words(run) == said
    page = write_report(run.path).html.read_text()
    assert said in page
    assert "4 min, 2.25 EUR left" in page


@pytest.mark.parametrize(("asked", "last"), [(2000, 20), (20, 20), (7, 7)])
def test_the_last_step_is_where_epochs_or_steps_end_first(run, tmp_path, asked, last):
    changed = run.path / "config.yaml"
    text = changed.read_text()
    assert "total_steps: null" in text
    changed.write_text(text.replace("total_steps: null", f"total_steps: {asked}"))
    assert last_step_of(run) == last
    run.update(data="/gone")  # then only what was asked for is known
    assert last_step_of(run) == asked


def test_nothing_is_left_of_a_run_that_is_over(run, tmp_path):
    step(run, *[10.0] * 6)
    run.note("budget.max_hours=1 allows no step after 6")
    assert left_of(run) is None
    run.update(reason=None, status="failed")
    assert left_of(run) is None
    run.update(status="running")
    step(run, *[10.0] * 14)
    assert left_of(run) is None
    log = tmp_path / "verl.log"
    log.write_text("step:1 - timing_s/step:9.0\n")
    imported = import_log(log, root=tmp_path, run_id="imported")
    assert (last_step_of(imported), left_of(imported)) == (None, None)
    run.update(data="/gone")
    assert last_step_of(run) is None


def test_a_retry_keeps_the_plan_that_training_began_with(run, tmp_path):
    config = RunConfig.model_validate(
        {
            "storage": {"root": tmp_path},
            "model": {"path": "Qwen/Qwen2.5-0.5B", "dtype": "bfloat16"},
            "resources": {"learner_gpus": 0.5, "rollout_gpus": 0.5, "card": "H100"},
        }
    )
    planned = plan_steps(config, run)
    assert planned.low < planned.typical < planned.high
    assert run.read().planned_from == "a roofline of H100"
    assert run.read().planned_step_s == planned
    other = config.resources.model_copy(update={"card": "T4"})
    assert plan_steps(config.model_copy(update={"resources": other}), run) == planned
