"""A run killed inside a save equals an undisturbed one."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path

import pytest

from rl_core.checkpoints.store import latest
from rl_core.config.run import RunConfig
from tests.rl_core.test_trainer import comparable, rollouts, train_until
from tests.rl_core.workers.test_cluster_ends import GONE_WITHIN_S
from tests.support.checkpoint_files import saved_files
from tests.support.programs import living
from tests.support.waiting import wait_for

STEPS = 7
MARKER = "TEST_CRASH_MARKER"


def settings(root: Path, run_id: str) -> RunConfig:
    """All state that moves: momenta, both schedules, the KL controller, two epochs of data."""
    return RunConfig.model_validate(
        {
            "run_id": run_id,
            "storage": {"root": root},
            "data": {"train_batch_size": 4, "max_prompt_length": 64, "max_response_length": 12},
            "actor": {"mini_batch_size": 2, "lr": 1e-3, "lr_schedule": "cosine", "warmup_steps": 2},
            "critic": {"lr": 1e-3, "lr_schedule": "linear"},
            "algorithm": {
                "kl_coef": 0.05,
                "kl_controller": "adaptive",
                "kl_target": 0.01,
                "kl_horizon": 50,
            },
            "rollout": {"engine": "vllm", "kv_cache_mib": 16, "max_num_seqs": 8},
            "resources": {"learner_threads": 1},
            "trainer": {"total_steps": STEPS, "save_freq": 3, "test_freq": 3, "test_problems": 3},
        }
    )


def crash_in_save(config: RunConfig, model: Path, step: int) -> None:
    """Runs until the run kills itself, and until the last of its processes is gone."""
    marker = uuid.uuid4().hex
    command = [sys.executable, "-m", "tests.support.crashing_run", config.model_dump_json()]
    command += [str(model), str(step), str(random.Random(0).uniform(0, 0.02))]
    # Ray's folder, which a SIGKILL leaves; pytest's own is too long for it.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temp_dir:
        environment = {MARKER: marker, "TMPDIR": temp_dir, "PYTHONPATH": str(Path.cwd())}
        done = subprocess.run(
            command, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        left = partial(living, MARKER, marker)
        wait_for(lambda: not left(), GONE_WITHIN_S, seen=left)
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.slow
def test_a_run_killed_inside_a_save_equals_an_undisturbed_one(tmp_path, tiny_model_path):
    config = settings(tmp_path, "killed")
    folder = tmp_path / "runs" / "killed"

    crash_in_save(config, tiny_model_path, 6)
    (half,) = (folder / "checkpoints").glob(".tmp-step_000006-*")
    assert any(half.iterdir())
    assert not (folder / "checkpoints" / "step_000006").exists()
    found = latest(folder)
    assert found is not None
    assert found.step == 3
    resumed = train_until(config, tiny_model_path)

    whole = train_until(settings(tmp_path, "whole"), tiny_model_path)
    rows = comparable(whole)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    for moving in ("critic/kl_coeff", "actor/lr", "critic/lr"):
        assert len({row[moving] for row in rows[1:]}) > STEPS // 2
    assert comparable(resumed) == rows
    assert rollouts(resumed).equals(rollouts(whole))
    expected = saved_files(whole.path / "checkpoints" / "latest")
    assert "model.safetensors" in expected
    assert "trainer/learner.safetensors" in expected
    assert saved_files(resumed.path / "checkpoints" / "latest") == expected
    assert list((folder / "checkpoints").glob(".tmp-*")) == []
