"""Tensors that are made on the learner's path say on which device: no card is needed to find out.

Wherever torch picks the device, it picks `meta`, whose tensors hold nothing: what meets them fails.
"""

from pathlib import Path

import pytest
import torch
import yaml

from rl_core.learner.learner import Learner
from rl_core.rollout.hf_engine import HfEngine
from rl_core.types import GenerationRequest, SamplingSettings
from tests.rl_core.learner.test_turns import with_turns
from tests.support.learners import without_timings

CASES = yaml.safe_load(Path(__file__).with_name("runs.yaml").read_text())["devices"]
SEVERAL_TURNS = ("checkpointing", "rloo, gspo")


@pytest.mark.parametrize("name", CASES)
def test_a_step_says_on_which_device_its_tensors_are(
    tiny_model_path, tmp_path, make_batch, settings, name
):
    # Torch's choice of a device is one thread's.
    config = settings(**CASES[name], resources={"learner_threads": 1})
    with torch.device("meta"):  # rollouts are collated on the CPU
        batches = [make_batch(seed, group_size=config.algorithm.group_size) for seed in range(2)]
    if name in SEVERAL_TURNS:
        batches = [with_turns(batch) for batch in batches]
    learner, other = (Learner(config, tiny_model_path) for _ in range(2))
    expected, expected_columns = learner.learn(batches[0])
    with torch.device("meta"):
        metrics, columns = other.learn(batches[0])
        other.reserve_snapshot()
        other.snapshot()
    assert without_timings(metrics) == without_timings(expected)
    assert str(columns) == str(expected_columns)  # nan is not equal to itself
    other.write_snapshot(tmp_path)
    resumed = Learner(config, tiny_model_path, tmp_path)
    expected, _ = learner.learn(batches[1])
    with torch.device("meta"):
        metrics, _ = resumed.learn(batches[1])
    assert without_timings(metrics) == without_timings(expected)


def test_a_transformers_engine_says_on_which_device_its_tensors_are(tiny_model_path):
    engine = HfEngine(tiny_model_path, dtype="float32", max_num_seqs=4, on_gpu=False)
    asked = [GenerationRequest((5, 6, 7)[: 1 + i % 3], seed=i, max_tokens=3 + i) for i in range(6)]
    sampling = SamplingSettings(8)

    def answers() -> list[list[int]]:
        ended = sorted(dict(engine.generate(asked, sampling)).items())
        return [completion.response_ids.tolist() for _, completion in ended]

    expected = answers()
    with torch.device("meta"):
        assert answers() == expected
