"""A run in which a small model calls the calculator: it was taught one call before."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_core import train
from rl_core.data.prompts import load_tokenizer
from tests.rl_core.rollout.test_tool_turns import CHATML, END, call
from tests.support.learners import build_tiny_model
from tests.support.runs import short

CALLS = f"<assistant>{call('multiply', a=6, b=7)}"


@pytest.fixture
def model_that_calls(tmp_path):
    """A tiny model that writes this call after every prompt, and nearly always the same."""
    folder = build_tiny_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(CHATML)
    tokenizer = load_tokenizer(str(folder))
    ids = torch.tensor([tokenizer.encode(CALLS, add_special_tokens=False)])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(300):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_run_with_tools_calls_them_and_learns_only_from_the_model_s_tokens(
    model_that_calls, tmp_path
):
    run = train(
        model=model_that_calls,
        problems="tests.support.calculator:Calculator",
        steps=2,
        root=tmp_path,
        settings={
            "env.max_turns": 2,
            "data.max_response_length": 300,
        },
    )
    assert run.metrics["rollout/tool_calls"][-1] > 0.5
