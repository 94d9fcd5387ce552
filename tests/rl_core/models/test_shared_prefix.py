import dataclasses
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from rl_core.batch import TrainBatch, collate
from rl_core.models import loading, packing, shared_prefix
from rl_core.models.shared_prefix import can_share_prompts, response_states
from tests.support.model_shapes import SMALL


def packing_backbone(path: Path) -> torch.nn.Module:
    model = loading.load_actor(path, torch.device("cpu"))
    packing.allow_packing(model)
    return model.get_decoder()


def counted(backbone: torch.nn.Module, batch: TrainBatch) -> tuple[Tensor, int, Tensor]:
    """States, tokens that were computed, and the gradient of a weighted sum of the states."""
    num_tokens = 0

    def count(module: torch.nn.Module, arguments: object, keywords: dict[str, Tensor]) -> None:
        nonlocal num_tokens
        ids, embedded = keywords.get("input_ids"), keywords.get("inputs_embeds")
        num_tokens += embedded[..., 0].numel() if ids is None else ids.numel()

    hook = backbone.register_forward_pre_hook(count, with_kwargs=True)
    backbone.zero_grad()
    states = response_states(backbone, batch)
    weights = torch.linspace(-1, 1, states.numel()).reshape(states.shape)
    (states * weights).sum().backward()
    hook.remove()
    gradient = torch.cat([p.grad.flatten() for p in backbone.parameters() if p.grad is not None])
    return states.detach(), num_tokens, gradient


@pytest.mark.parametrize("group_size", [2, 3, 8])
def test_a_prompt_read_once_serves_its_group_as_if_it_were_read_each_time(
    tiny_model_path, make_batch, group_size
):
    backbone = packing_backbone(tiny_model_path)
    batch = make_batch(group_size=group_size)
    alone = dataclasses.replace(batch, group_ids=torch.arange(len(batch)))
    states, few_tokens, gradient = counted(backbone, batch)
    expected, many_tokens, expected_gradient = counted(backbone, alone)
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    assert (gradient - expected_gradient).norm() / expected_gradient.norm() < 1e-5
    first = batch.prompts()[0]
    assert few_tokens == (batch.prompt_lengths[first] - 1).sum() + batch.response_lengths.sum()
    assert many_tokens == batch.input_ids.numel()


def test_a_micro_batch_has_one_gradient_of_the_embedding(tiny_model_path, make_batch):
    """Each lookup's is a tensor of the whole table, made and added up."""
    backbone = packing_backbone(tiny_model_path)
    lookups = []
    backbone.get_input_embeddings().register_forward_hook(lambda *_: lookups.append(1))
    counted(backbone, make_batch(group_size=4))
    assert len(lookups) == 1


def test_a_response_of_one_token_needs_its_prompt_and_no_more(tiny_model_path, make_rollout):
    backbone = packing_backbone(tiny_model_path)
    batch = collate([make_rollout([5, 6, 7], [8 + i]) for i in range(2)], pad_id=0)
    states, num_tokens, _ = counted(backbone, batch)
    expected = backbone(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state[0, -1]
    torch.testing.assert_close(states, expected.expand(2, -1), atol=1e-5, rtol=1e-5)
    assert num_tokens == 2 + 2  # 5 and 6 once, and 7 for each row


def test_models_whose_layers_see_a_window_read_each_prompt_again(tiny_model_path, make_batch):
    batch = make_batch(group_size=4)
    backbone = loading.load_actor(tiny_model_path, torch.device("cpu")).get_decoder()
    assert not can_share_prompts(backbone), "nothing has tried its attention"
    assert counted(backbone, batch)[1] == batch.input_ids.numel()
    for window, can_share in ((4, False), (None, True)):
        config = transformers.MistralConfig(**SMALL, sliding_window=window)
        model = transformers.MistralForCausalLM(config).eval()
        packing.allow_packing(model)
        assert can_share_prompts(model.get_decoder()) is can_share


@pytest.mark.parametrize(("shortest", "num_tokens"), [(16, 4 * 20), (4, 4 * 3 + 3 * 16 + 4)])
def test_on_a_card_rows_of_which_a_tenth_would_be_padding_are_one_row(
    tiny_model_path, make_rollout, monkeypatch, shortest, num_tokens
):
    """Prompts of 4, three responses of 16 tokens and a shorter one: the last is never computed."""
    lengths = (16, 16, 16, shortest)
    rollouts = [
        make_rollout([5, 6, 7, 8 + i], [9 + i] * length, group_id=i)
        for i, length in enumerate(lengths)
    ]
    batch = collate(rollouts, pad_id=0)
    backbone = packing_backbone(tiny_model_path)
    expected, _, expected_gradient = counted(backbone, batch)
    monkeypatch.setattr(shared_prefix, "_on_card", lambda batch: True)
    states, computed, gradient = counted(backbone, batch)
    assert computed == num_tokens
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    assert (gradient - expected_gradient).norm() / expected_gradient.norm() < 1e-5
