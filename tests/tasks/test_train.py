"""Training that is stopped, with a real learner and engine, and a wandb that never answers."""

import json

import pytest

from rl_core.checkpoints.store import latest
from tests.rl_core.tracking.test_tensorboard_tracker import curves
from tests.support.fake_wandb import API_KEY, black_hole
from tests.support.programs import cli


@pytest.mark.slow
@pytest.mark.chaos
def test_a_budget_stops_training_and_a_silent_wandb_is_a_line(tmp_path, tiny_overrides, survived):
    # A step of the tiny model takes some tenths of a second: 400 of them are more than 3.6 s.
    settings = [
        *tiny_overrides,
        *("rollout.engine=hf", "trainer.total_epochs=50", "budget.max_hours=0.001"),
        *("trainer.logger=[tensorboard,wandb]", "trainer.wandb_mode=online"),
        *(f"storage.root={tmp_path}", "run_id=one"),
    ]
    with black_hole() as url:
        variables = {"WANDB_BASE_URL": url, "WANDB_API_KEY": API_KEY}
        done = cli("train", *settings, more=variables, timeout_s=500)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "one"
    checkpoint = latest(run)
    assert checkpoint is not None
    assert 2 <= checkpoint.step < 400
    record = json.loads((run / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["steps"] == checkpoint.step
    assert f"budget.max_hours=0.001 allows no step after {checkpoint.step}" in record["reason"]
    log = (run / "log.txt").read_text()
    assert log.count("wandb: offline in this run, `countdown-train sync` uploads it later") == 1
    assert "step 2/" in log
    assert "step 2/" not in done.stdout  # trainer.logger lacks `console`

    # The machine's memory was watched meanwhile: who held it, by step and at the most.
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    assert [row["step"] for row in rows] == list(range(checkpoint.step + 1))
    processes = {"trainer", "learner", "engine_0", "others", "object_store"}
    assert {name.split("/")[-1] for name in rows[-1] if "/host_gib/" in name} <= processes
    assert rows[-1]["memory/host_gib/trainer"] > 0.01
    assert rows[-1]["memory/host_available_gib"] > 0
    assert record["host_peak_gib"].keys() <= processes
    assert curves(run)["critic/score/mean"] == [
        (row["step"], pytest.approx(row["critic/score/mean"])) for row in rows[1:]
    ]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in files if API_KEY.encode() in path.read_bytes()] == []
    survived("wandb", "black hole, in training", rows_lost=checkpoint.step + 1 - len(rows))


@pytest.mark.slow
def test_a_reward_that_pays_for_letters_is_found_hacked_and_ends_training(tmp_path, tiny_overrides):
    """A random model learns to write letters; no answer of its tests is ever right."""
    settings = [
        *(word for word in tiny_overrides if not word.startswith("trainer.")),
        *("rollout.engine=hf", "algorithm.estimator=grpo", "algorithm.group_size=8"),
        *("algorithm.outcome_gate=false", "actor.lr=3e-3", "trainer.total_epochs=50"),
        *("trainer.total_steps=60", "trainer.save_freq=8", "trainer.test_freq=4"),
        *("env.reward=tests.support.user_rewards:pays_for_letters", f"storage.root={tmp_path}"),
        *("budget.stop_on_hacked_reward=true", "run_id=one"),
    ]
    done = cli("train", *settings, timeout_s=500)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "runs" / "one"
    record = json.loads((run / "run.json").read_text())
    assert (record["status"], record["stopped_by"]) == (
        *("finished", "budget.stop_on_hacked_reward=true"),
    )
    assert 16 < record["steps"] < 60
    assert "val/accuracy 0.000 -> 0.000): training stopped there" in record["reason"]
    assert "budget.stop_on_hacked_reward=false continues from step" in record["next_step"]
    assert latest(run).step == record["steps"]
    assert (run / "checkpoints" / "best").exists()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").open()]
    assert rows[-1]["critic/score/mean"] > rows[1]["critic/score/mean"] + 0.1
