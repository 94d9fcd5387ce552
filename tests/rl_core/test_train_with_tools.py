"""A run in which a small model calls the calculator: it was taught one call before."""

import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_core import train
from rl_core.data.prompts import encode_prompt, load_tokenizer
from rl_core.envs import find_env
from tests.rl_core.rollout.test_tool_turns import CHATML, END, HERE, call
from tests.support.calculator import Trouble


@pytest.fixture
def model_that_calls(tiny_model_path, tmp_path) -> Path:
    """A tiny model that writes one call after most prompts, and reads the reply."""
    folder = shutil.copytree(tiny_model_path, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(CHATML)
    tokenizer = load_tokenizer(str(folder))
    shown = find_env(f"{HERE}:Trouble")().chat_template
    asked = [[{"role": "user", "content": f"What is {i} * {99 - i}?"}] for i in range(10, 18)]
    prompts = [encode_prompt(one, tokenizer, chat_template=shown)[1] for one in asked]
    taught = f"{call('multiply', a=6, b=7)}\n<tool>42{END}\n<assistant>42{END}"
    ids = tokenizer.encode(taught, add_special_tokens=False)
    rows = torch.tensor([[*prompt, *ids] for prompt in prompts])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(250):
        loss = model(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
def test_a_run_with_tools_calls_them_and_learns_to(model_that_calls, tmp_path):
    with pytest.raises(ValueError, match="has tools: name its reward as module:function"):
        train(model=model_that_calls, problems=Trouble, reward=lambda response: 1.0, root=tmp_path)
    run = train(
        model=model_that_calls,
        problems=Trouble,
        steps=3,
        root=tmp_path,
        settings={
            "env.max_turns": 3,
            "model.dtype": "float32",
            "data.max_prompt_length": 128,
            "data.max_response_length": 160,
            "data.test_size": 8,
            "data.train_size": 64,
            "actor.lr": 1e-3,
            "algorithm.outcome_gate": False,
            "storage.min_free_gib": 0,
        },
    )
    steps = run.metrics.filter(run.metrics["step"] > 0)
    assert steps["rollout/tool_calls"].min() > 0
    assert steps["actor/grad_norm"].max() > 0
    calls = [
        [turn["text"] for turn in turns if turn["author"] == "env"]
        for turns in run.rollouts["turns"].to_list()
        if turns is not None
    ]
    assert any(f"\n<tool>42{END}\n<assistant>" in texts for texts in calls)
    made = [sum("<tool>42" in text for text in texts) for texts in calls]
    scores = run.rollouts.filter(run.rollouts["turns"].is_not_null())["score"].to_list()
    assert all(score >= number for score, number in zip(scores, made, strict=True))
