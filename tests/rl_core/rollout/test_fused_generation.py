import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl_core.models import decoder
from rl_core.rollout.fused_generation import FusedContext, FusedModel
from rl_core.rollout.hf_engine import HfEngine
from rl_core.rollout.protocol import in_order
from rl_core.types import Completion, GenerationRequest, SamplingSettings

PROMPTS = ((65,), tuple(range(70, 80)), (66, 67, 68))
"""Of one token, too: nothing of it stands before its last."""


def generated(engine: HfEngine, prompt_of_row: tuple[int, ...]) -> list[Completion]:
    requests = [GenerationRequest(PROMPTS[p], seed=row) for row, p in enumerate(prompt_of_row)]
    return in_order(engine.generate(requests, SamplingSettings(24, temperature=1.0)))


@pytest.mark.parametrize("prompt_of_row", [(0, 0), (1, 2), (2, 0, 1, 0, 1, 1)])
def test_the_decoder_samples_what_transformers_would(tiny_model_path, monkeypatch, prompt_of_row):
    engine = HfEngine(tiny_model_path, dtype="float32", max_num_seqs=8, on_gpu=False)
    actual = generated(engine, prompt_of_row)
    monkeypatch.setattr(decoder, "supports", lambda backbone: False)
    for one, other in zip(actual, generated(engine, prompt_of_row), strict=True):
        assert one.response_ids.tolist() == other.response_ids.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_new_weights_replace_the_joined_copies(tiny_model_path):
    engine = HfEngine(tiny_model_path, dtype="float32", max_num_seqs=8, on_gpu=False)
    before = generated(engine, (0, 1))
    new = load_file(tiny_model_path / "model.safetensors")
    new["model.layers.0.mlp.gate_proj.weight"].neg_()
    engine.update_weights(new)
    after = generated(engine, (0, 1))
    assert before[1].response_ids.tolist() != after[1].response_ids.tolist()


def test_responses_that_leave_take_nothing_along(tiny_model_path):
    loaded = AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32)
    model, token = FusedModel(loaded.eval()), torch.tensor([9, 8])
    with torch.inference_mode():
        context, _ = model.read_prompts(PROMPTS, [0, 1, 2])
        context.keep(torch.tensor([2, 1]))
        assert isinstance(context, FusedContext)
        alone, _ = model.read_prompts([PROMPTS[2], PROMPTS[1]], [0, 1])
        torch.testing.assert_close(
            model.next_logits(token, context), model.next_logits(token, alone)
        )
