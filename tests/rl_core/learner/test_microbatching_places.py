"""What a run has learned of its memory is for runs whose memory depends on the same."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_core.learner.microbatching import memory_place


@pytest.mark.parametrize(
    ("lever", "words"),
    [
        ({"model": {"gradient_checkpointing": True}}, "gradient_checkpointing"),
        ({"model": {"lora_rank": 8, "load_in_4bit": True}}, "lora_rank 8; load_in_4bit"),
        ({"actor": {"optimizer": "adamw_8bit"}}, "optimizer adamw_8bit"),
        ({"resources": {"offload": True}}, "offload"),
    ],
)
def test_what_was_learned_with_another_lever_is_not_taken_over(
    settings, tiny_model_path, lever, words
):
    cpu = torch.device("cpu")
    model = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    plain = memory_place(settings(), model, cpu)
    assert set(memory_place(settings(**lever), model, cpu).split("; ")) == {
        *plain.split("; "),
        *words.split("; "),
    }
