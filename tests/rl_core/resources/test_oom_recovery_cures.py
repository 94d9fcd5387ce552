"""A recovery step cures a learner that really cannot have the memory, and changes nothing."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rl_core.errors import OutOfMemory
from rl_core.resources.oom_recovery import in_words, next_recovery_step, with_changes
from tests.rl_core.learner.test_memory_capped import learn

NUM_LAYERS = 12


def deep_model(tiny: Path, folder: Path) -> Path:
    """Its layers keep 107 MB of a row of 2,048 tokens, and 15 MB with checkpoints."""
    same = {"num_hidden_layers": NUM_LAYERS, "layer_types": ["full_attention"] * NUM_LAYERS}
    config = Qwen2Config.from_pretrained(tiny, **same)
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    torch.random.set_rng_state(state)
    PreTrainedTokenizerFast.from_pretrained(tiny).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.chaos
def test_the_next_recovery_step_makes_a_single_row_fit_and_the_weights_are_the_same(
    tiny_model_path, tmp_path, settings, survived
):
    model = deep_model(tiny_model_path, tmp_path / "deep")
    config = settings(
        data={"train_batch_size": 1, "max_response_length": 1_984},
        actor={"micro_batch_tokens": 2_048, "mini_batch_size": 1, "lr": 1e-5},
        algorithm={"estimator": "grpo", "group_size": 2, "kl_mode": "none"},
        resources={"learner_threads": 1},
        checkpoints={"in_background": False},
    )
    assert learn(config, model, tmp_path / "whole", 0).returncode == 0
    said = learn(config, model, tmp_path / "capped", 60).stderr.splitlines()[-1]
    found = re.fullmatch(r"rl_core.errors.OutOfMemory: out of memory in (\w+): (.*)", said)
    assert found, said
    assert found[1] == "update_actor"
    assert "Every micro-batch is a single row already" in found[2]
    step = next_recovery_step(config, OutOfMemory(found[1], found[2]), None)
    assert step is not None
    assert in_words(step) == "model.gradient_checkpointing=true"
    assert learn(with_changes(config, [step]), model, tmp_path / "cured", 60).returncode == 0
    for file in ("model.safetensors", "trainer/learner.safetensors"):
        actual, expected = (load_file(tmp_path / name / file) for name in ("cured", "whole"))
        assert actual.keys() == expected.keys()
        for name, tensor in expected.items():
            difference = (actual[name].double() - tensor.double()).abs()
            # Adam makes a step of up to lr=1e-5 even of a gradient that is nothing but rounding.
            assert difference.max() < 1e-5, name
            assert (difference > 1e-6).sum() <= 2, name
    survived("OOM", "a row that does not fit (a new attempt)")
