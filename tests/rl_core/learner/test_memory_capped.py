"""A learner that really cannot have the memory: its process's address space is capped."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rl_core.config.run import RunConfig
from tests.support.learners import assert_close, without_timings
from tests.support.programs import Done, python

LEARN = """
import json, re, resource, sys
from pathlib import Path
from rl_core.system.process_env import apply_defaults
apply_defaults()
import torch
from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.learner.learner import Learner

torch.set_num_threads(1)
config, model, folder = RunConfig.model_validate_json(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
rows, prompt, response = config.data.train_batch_size * 2, 64, config.data.max_response_length
generator = torch.Generator().manual_seed(0)
def full(value, *shape):
    return torch.full((rows, *shape), value)
batch = TrainBatch(
    torch.randint(258, (rows, prompt + response), generator=generator), full(prompt),
    full(response), full(-5.5, response), torch.rand(rows, generator=generator),
    torch.arange(rows) // 2, full(True), full(False),
)
learner = Learner(config, model)
learner.make_experience(batch)  # what a first pass keeps, and does not give back
free_mib, hard = int(sys.argv[4]), resource.getrlimit(resource.RLIMIT_AS)[1]
if free_mib:
    status = Path("/proc/self/status").read_text()
    limit = int(re.search(r"VmSize:\\s+(\\d+) kB", status)[1]) * 1024 + free_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
metrics = [learner.learn(batch)[0] for _ in range(2)]
resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
learner.save(Path(folder))
print(json.dumps(metrics))
"""


def learn(config: RunConfig, model: Path, folder: Path, free_mib: int) -> Done:
    """Learns two steps with so much free memory (0: all), and prints their metrics."""
    return python(LEARN, config.model_dump_json(), model, folder, free_mib)


@pytest.mark.slow
@pytest.mark.chaos
def test_a_capped_process_learns_what_one_with_all_memory_learns(
    tiny_model_path, tmp_path, settings, survived
):
    """32 rows of 512 tokens at once need 180 MiB, and 100 are there."""
    config = settings(
        data={"train_batch_size": 16, "max_response_length": 448},
        actor={"micro_batch_tokens": 16_384, "mini_batch_size": 16, "lr": 1e-5},
        algorithm={"estimator": "grpo", "group_size": 2, "kl_mode": "none"},
        resources={"learner_threads": 1},
        checkpoints={"in_background": False},
    )
    metrics = {}
    for name, free_mib in (("whole", 0), ("capped", 100)):
        result = learn(config, tiny_model_path, tmp_path / name, free_mib)
        assert result.returncode == 0, result.stderr
        metrics[name] = json.loads(result.stdout.splitlines()[-1])
    assert sum(step["memory/oom/update_actor"] for step in metrics["whole"]) == 0
    assert sum(step["memory/oom/update_actor"] for step in metrics["capped"]) >= 1
    assert metrics["capped"][-1]["memory/budget_tokens/update_actor"] < 16_384
    for capped, whole in zip(metrics["capped"], metrics["whole"], strict=True):
        assert without_timings(capped) == pytest.approx(without_timings(whole), rel=1e-4, abs=1e-6)
    for file in ("model.safetensors", "trainer/learner.safetensors"):
        actual, expected = (load_file(tmp_path / name / file) for name in ("capped", "whole"))
        assert_close(actual, expected, atol=1e-6)
    start = load_file(tiny_model_path / "model.safetensors")
    end = load_file(tmp_path / "whole" / "model.safetensors")
    assert max((end[name] - tensor).abs().max() for name, tensor in start.items()) > 1e-5
    survived("OOM", "update_actor of a capped process")
