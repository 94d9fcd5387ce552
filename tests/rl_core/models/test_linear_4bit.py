from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from rl_core.models import bitsandbytes, loading
from rl_core.models.linear_4bit import Linear4bit, pack_linear_layers
from rl_core.models.lora import add_adapters, merged_state
from rl_core.resources.memory_plan import ModelShape, frozen_bytes, memory_plan
from tests.support.runs import run_config

CPU = torch.device("cpu")
QLORA = {"lora_rank": 4, "load_in_4bit": True}
NF4 = torch.tensor(
    [
        *(-1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0),
    ]
)
"""Its levels, from the paper's appendix E."""


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(12).view(1, -1)).logits
    return result


def plain_of(model: Any, path: Path) -> transformers.PreTrainedModel:
    """The model that engines have, with the weights that they are sent."""
    plain = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    plain.load_state_dict(loading.complete_weights(model), strict=False)
    return plain


@pytest.mark.parametrize("in_features", [64, 96])
def test_each_number_becomes_its_blocks_largest_times_the_nearest_level(in_features):
    """Blocks lie across rows that are no multiple of them."""
    torch.manual_seed(0)
    layer = nn.Linear(in_features, 32)
    packed = Linear4bit(layer, CPU)
    blocks = layer.weight.detach().view(-1, 64)
    largest = blocks.abs().amax(dim=1, keepdim=True)
    nearest = ((blocks / largest).unsqueeze(-1) - NF4).abs().argmin(dim=-1)
    rounded = (NF4[nearest] * largest).view_as(layer.weight)
    torch.testing.assert_close(packed.whole_weight(), rounded)
    assert packed.weight.nbytes == 32 * in_features // 2
    assert packed.absmax.nbytes == 32 * in_features // 64 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_its_product_and_gradient_are_those_of_the_whole_weight(dtype):
    torch.manual_seed(0)
    packed = Linear4bit(nn.Linear(64, 32), CPU)
    plain = nn.Linear(64, 32)
    plain.load_state_dict({"weight": packed.whole_weight(), "bias": packed.bias})
    x = torch.randn(2, 5, 64)
    results, gradients = [], []
    for layer in (packed, plain):
        inputs = x.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            result = layer(inputs)
        result.float().square().sum().backward()
        assert inputs.grad is not None
        results.append(result)
        gradients.append(inputs.grad)
    assert results[0].dtype == dtype
    rounding = 0.03 if dtype == torch.bfloat16 else 1e-5  # of the largest number
    for one, other in (results, gradients):
        assert (one - other).abs().max() < rounding * other.abs().max()
    assert packed.weight.grad is None


def test_engines_get_the_weights_that_the_learner_computes_with(tiny_model_path):
    model = loading.load_actor(tiny_model_path, CPU, in_4bit=True)
    add_adapters(model, rank=4, alpha=8.0)
    base = loading.load_actor(tiny_model_path, CPU)
    assert (logits(model) - logits(base)).abs().max() > 1e-3  # rounded
    for std in (0.0, 0.05):  # of what is added to the adapters as they are made
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if ".lora_" in name:
                    weight.add_(std * torch.randn(weight.shape))
        sent = plain_of(model, tiny_model_path)
        torch.testing.assert_close(logits(sent), logits(model), atol=1e-5, rtol=0)
    shapes = {name: tuple(x.shape) for name, x in merged_state(base)}
    assert shapes == {name: tuple(x.shape) for name, x in merged_state(model)}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_learner_moves_and_saves_adapters_alone(new_learner, tmp_path, make_batch, checkpointed):
    learner = new_learner(
        model=QLORA | {"gradient_checkpointing": checkpointed}, actor={"optimizer": "adamw_8bit"}
    )
    actor, critic = learner.models.actor, learner.models.critic
    before = {name: x.clone() for name, x in actor.state_dict().items()}
    for step in range(2):
        learner.learn(make_batch(step))
    moved = {name for name, x in actor.state_dict().items() if not torch.equal(x, before[name])}
    assert moved == {name for name in before if ".lora_" in name}
    # Actor, critic and reference hold one set of packed weights.
    packed = {id(x) for x in actor.parameters() if x.dtype == torch.uint8}
    assert packed == {id(x) for x in critic.parameters() if x.dtype == torch.uint8}
    learner.save(tmp_path)
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.testing.assert_close(logits(saved.eval()), logits(actor), atol=1e-5, rtol=0)


@pytest.mark.parametrize("model", [{"lora_rank": 4}, QLORA], ids=["adapters", "4 bits"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_several_micro_batches_move_adapters_as_one_does(new_learner, make_batch, model, dtype):
    moved, norms = [], []
    for tokens in (4_096, 32):
        sections = {"mini_batch_size": 8, "micro_batch_tokens": tokens}
        learner = new_learner(
            model=model | {"dtype": dtype},
            actor=sections,
            algorithm={"estimator": "grpo", "group_size": 2},
        )
        metrics, _ = learner.learn(make_batch(group_size=2))
        norms.append(metrics["actor/grad_norm"])
        weights = learner.models.actor.named_parameters()
        moved.append({name: weight for name, weight in weights if ".lora_B." in name})
    assert norms[0] == pytest.approx(norms[1], rel=1e-4 if dtype == "float32" else 0.02)
    assert norms[0] > 0
    assert all(bool(weight.any()) for weight in moved[1].values())


def test_frozen_weights_take_what_is_planned(tiny_model_path, settings):
    model = loading.load_actor(tiny_model_path, CPU, in_4bit=True)
    shape = ModelShape.from_folder(tiny_model_path)
    config = settings(model=QLORA)
    assert frozen_bytes(shape, config) == sum(x.nbytes for x in model.parameters())
    first, whole = memory_plan(shape, config)[0], settings(model={"lora_rank": 4})
    less = frozen_bytes(shape, whole) - frozen_bytes(shape, config)
    assert memory_plan(shape, whole)[0].parts["weights"] - first.parts["weights"] == less


def test_what_cannot_be_packed_is_refused_in_a_line(tiny_model_path, monkeypatch):
    with pytest.raises(ValueError, match=r"model\.load_in_4bit=true has weights that cannot lea"):
        run_config(model={"load_in_4bit": True})
    gpt = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=30, n_embd=8, n_layer=1, n_head=2)
    )
    with pytest.raises(ValueError, match=r"load_in_4bit=true: GPT2LMHeadModel has no linear lay"):
        pack_linear_layers(gpt, CPU)
    monkeypatch.setattr(bitsandbytes, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"^model\.load_in_4bit=true needs the package bitsandby"):
        loading.load_actor(tiny_model_path, CPU, in_4bit=True)
