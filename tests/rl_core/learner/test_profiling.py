import time
from pathlib import Path

import pytest
import torch
import transformers
from torch.utils.flop_counter import FlopCounterMode

from rl_core.batch import TrainBatch
from rl_core.config.run import RunConfig
from rl_core.learner.profiling import Utilisation, measured, peak_flops, training_flops
from rl_core.resources.memory_plan import ModelShape

CPU = torch.device("cpu")
SHAPE = ModelShape(
    hidden_size=128, intermediate_size=256, num_layers=3, num_heads=4, num_kv_heads=2,
    head_size=32, vocab_size=512, tied=True, attention_bias=False,
)  # fmt: skip


def test_a_phase_is_measured_in_seconds_and_in_the_memory_it_touched():
    metrics: dict[str, float] = {}
    with measured("small", CPU, metrics):
        time.sleep(0.05)
    with measured("large", CPU, metrics):
        torch.ones(2**28, dtype=torch.uint8)  # a quarter of a GiB, gone at once
    with measured("after", CPU, metrics):
        pass
    assert metrics["timing_s/small"] >= 0.05
    grown = metrics["memory/peak_gib/large"] - metrics["memory/peak_gib/small"]
    assert grown == pytest.approx(0.25, abs=0.02)
    assert metrics["memory/peak_gib/after"] < metrics["memory/peak_gib/large"] - 0.2


def test_flops_are_those_that_torch_counts():
    config = transformers.Qwen2Config(
        vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config)
    length = 64
    with FlopCounterMode(display=False) as counter:
        model(input_ids=torch.ones(2, length, dtype=torch.int64)).logits.sum().backward()
    counted = counter.get_total_flops()
    shape = ModelShape.from_config(config.to_dict())
    # torch computes the head at all tokens and the whole square of the attention.
    responses, none = torch.tensor([length, length]), torch.tensor([0, 0])
    ours = training_flops(shape, none, responses, has_head=True)
    half_attention = 3 * 2 * 3 * 128 * 2 * length**2
    assert ours + half_attention == pytest.approx(counted, rel=0.01)
    headless = training_flops(shape, none, responses, has_head=False)
    assert ours - headless == 3 * 2 * 512 * 128 * 2 * length
    assert training_flops(shape, responses, none, has_head=True) == headless


def test_a_prompt_that_a_group_shares_counts_once():
    prompts, responses = torch.tensor([5, 5, 7]), torch.tensor([3, 2, 4])
    own = torch.tensor([True, False, True])

    def flops(prompts: list[int], responses: list[int], **more: torch.Tensor) -> float:
        lengths = torch.tensor(prompts), torch.tensor(responses)
        return training_flops(SHAPE, *lengths, has_head=True, **more)

    shared = training_flops(SHAPE, prompts, responses, own_prompt=own, has_head=True)
    # The second row's prompt as a row of its own is what was not computed.
    assert shared == pytest.approx(flops([5, 5, 7], [3, 2, 4]) - flops([5], [0]))
    assert flops([5], [3], own_prompt=torch.tensor([True])) == flops([5], [3])


def test_the_peak_is_a_rate_that_this_machine_can_have():
    assert 1e9 < peak_flops(CPU, torch.bfloat16, 1) < 1e13


def test_the_peak_is_measured_once_and_not_in_every_step(
    tiny_model_path: Path, two_responses: TrainBatch, monkeypatch: pytest.MonkeyPatch
):
    use = Utilisation(RunConfig(), tiny_model_path, CPU, shares_prompts=False)
    monkeypatch.setattr(torch, "mm", pytest.fail)
    first, second = (
        use.shares(two_responses, torch.tensor([True, True]), {"timing_s/update_actor": s})
        for s in (1.0, 2.0)
    )
    assert first["mfu/actor"] == 2 * second["mfu/actor"] > 0
