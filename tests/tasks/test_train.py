"""Training held to a budget, with a real learner and engine: it stops before it goes beyond."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from rl_core.checkpoints.store import latest
from tests.rl_core.tracking.test_tensorboard_tracker import curves
from tests.support.fake_wandb import API_KEY, black_hole
from tests.support.programs import Done, cli


def train(root: Path, overrides: list[str], variables: Mapping[str, str] = {}) -> Done:
    words = ["train", *overrides, f"storage.root={root}", "run_id=one"]
    return cli(*words, more=variables, timeout_s=500)


@pytest.mark.slow
def test_a_budget_stops_training_with_a_checkpoint_and_a_reason(tmp_path, tiny_overrides):
    # A step of the tiny model takes some tenths of a second: 400 of them are more than 3.6 s.
    settings = [*tiny_overrides, "rollout.engine=hf", "trainer.total_epochs=50"]
    done = train(tmp_path, [*settings, "budget.max_hours=0.001"])
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "one"
    checkpoint = latest(run)
    assert checkpoint is not None
    assert 2 <= checkpoint.step < 400
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["steps"] == checkpoint.step
    assert f"budget.max_hours=0.001 allows no step after {checkpoint.step}" in record["reason"]
    # The machine's memory was watched meanwhile: who held it, by step and at the most.
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    processes = {"trainer", "learner", "engine_0", "others", "object_store"}
    assert {name.split("/")[-1] for name in rows[-1] if "/host_gib/" in name} <= processes
    assert rows[-1]["memory/host_gib/trainer"] > 0.01
    assert rows[-1]["memory/host_available_gib"] > 0
    assert record["host_peak_gib"].keys() <= processes


@pytest.mark.slow
@pytest.mark.chaos
def test_a_wandb_that_never_answers_is_a_line_in_the_log_and_tensorboard_has_all(
    tmp_path, tiny_overrides, survived
):
    logged = [
        *tiny_overrides,
        "rollout.engine=hf",
        "trainer.total_steps=2",
        "trainer.logger=[tensorboard,wandb]",
        "trainer.wandb_mode=online",
    ]
    with black_hole() as url:
        done = train(tmp_path, logged, {"WANDB_BASE_URL": url, "WANDB_API_KEY": API_KEY})
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "one"
    log = (run / "log.txt").read_text()
    assert log.count("wandb: offline in this run, `countdown-train sync` uploads it later") == 1
    assert "step 2/2" in log
    assert "step 2/2" not in done.stdout  # trainer.logger lacks `console`
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert curves(run)["critic/score/mean"] == [
        (row["step"], pytest.approx(row["critic/score/mean"])) for row in rows[1:]
    ]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if API_KEY.encode() in path.read_bytes()] == []
    survived("wandb", "black hole, in training", rows_lost=3 - len(rows))
