"""Learner ranks as Ray runs them: real processes, which may die in mid-step."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rl_core.batch import collate
from rl_core.errors import WorkerDied
from rl_core.learner.learner import Learner
from rl_core.types import GenerationRequest, SamplingSettings
from rl_core.workers.cluster import Workers
from tests.support.learners import assert_close, without_timings

GREEDY = SamplingSettings(max_tokens=12, temperature=0.0)
REQUESTS = [GenerationRequest(tuple(range(5 + i, 25 + 3 * i)), seed=i) for i in range(3)]
SECTIONS = {
    "data": {"max_prompt_length": 64, "max_response_length": 64},
    "actor": {"lr": 1e-4},
    "critic": {"lr": 1e-4},
    "rollout": {"engine": "hf"},
}


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    return tensors


@pytest.mark.slow
@pytest.mark.chaos
def test_two_ranks_are_one_learner_until_one_of_them_dies(
    tiny_model_path, tmp_path, settings, random_rollouts, survived
):
    one = settings(**SECTIONS, resources={"learner_threads": 1})
    two = settings(**SECTIONS, resources={"learner_threads": 1, "learner_ranks": 2})
    rollouts = random_rollouts(8)
    learner = Learner(one, tiny_model_path)
    expected, columns = learner.learn(collate(rollouts, 0))
    learner.save(tmp_path / "one")
    logs = tmp_path / "logs"
    with Workers.start(two, tiny_model_path, log_folder=logs) as workers:
        before = workers.engines.generate(REQUESTS, GREEDY)
        metrics, of_rollouts = workers.learn(rollouts, step=1)
        for name, number in without_timings(expected).items():
            if not name.startswith("global_seqlen/"):
                assert metrics[name] == pytest.approx(number, rel=1e-5, abs=1e-6), name
        assert of_rollouts["value_mean"] == pytest.approx(columns["value_mean"], abs=1e-5)
        workers.sync_weights()
        after = workers.engines.generate(REQUESTS, GREEDY)
        for old, new in zip(before, after, strict=True):
            assert not np.array_equal(old.logprobs, new.logprobs)
        workers.snapshot()
        workers.write_snapshot(tmp_path / "two")
        for part in (".", "trainer"):
            actual, wanted = (tensors_in(tmp_path / name / part) for name in ("two", "one"))
            assert_close(actual, wanted, atol=1e-5)

        asked = workers.ranks["learner_1"].__ray_call__.remote(lambda actor: os.getpid())
        pid = asked.future().result()
        os.kill(pid, signal.SIGSTOP)  # so that the other is in the step when it dies
        with ThreadPoolExecutor(1) as pool:
            step = pool.submit(workers.learn, rollouts, 2)
            time.sleep(2)
            assert not step.done()
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerDied, match=r"learner_1 died: .*learner_1\.log ends with"):
                step.result(timeout=300)
    survived("SIGKILL", "one of two learner ranks in mid-step", steps_lost=1)
