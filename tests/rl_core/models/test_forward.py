import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rl_core.batch import TrainBatch, collate
from rl_core.models import loading
from rl_core.models.forward import forward_pass
from rl_core.types import Rollout

CPU = torch.device("cpu")
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module")
def batch(random_rollouts: Callable[..., list[Rollout]]) -> TrainBatch:
    return collate(random_rollouts(5), pad_id=0)


def rows_of(batch: TrainBatch) -> list[tuple[list[int], int]]:
    """Each row's real tokens and the length of its prompt."""
    return [
        (batch.input_ids[row, : batch.lengths[row]].tolist(), int(batch.prompt_lengths[row]))
        for row in range(len(batch))
    ]


def check_rows(result: Tensor, expected: list[Tensor]) -> None:
    for row, values in zip(result, expected, strict=True):
        torch.testing.assert_close(row[: len(values)], values, **CLOSE)
        assert (row[len(values) :] == 0).all()


def test_neither_more_padding_nor_the_entropy_changes_the_log_probs(actor, batch):
    settings = {"temperature": 0.7, "compute_dtype": torch.float32}
    alone = forward_pass(batch, actor=actor, **settings)
    assert alone.entropy is alone.values is None
    wider = dataclasses.replace(
        batch, input_ids=torch.nn.functional.pad(batch.input_ids, (0, 9), value=77)
    )
    both = forward_pass(wider, actor=actor, with_entropy=True, **settings)
    torch.testing.assert_close(both.logprobs, alone.logprobs)


def test_a_new_critic_says_0_everywhere_and_learns_from_there(actor, batch):
    critic = loading.make_critic(actor)
    values = forward_pass(batch, critic=critic, compute_dtype=torch.float32).values
    assert (values == 0).all()
    (values - 1.0)[batch.response_mask].square().sum().backward()
    assert critic.head.weight.grad.abs().sum() > 0
    backbone = dict(critic.backbone.named_parameters())
    for name, parameter in actor.get_decoder().named_parameters():
        assert torch.equal(backbone[name], parameter)
        assert backbone[name] is not parameter


def test_values_belong_to_the_state_before_each_token(actor, batch):
    critic = loading.make_critic(actor)
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        values = forward_pass(batch, critic=critic, compute_dtype=torch.float32).values
        expected = []
        for ids, prompt_length in rows_of(batch):
            states = [
                critic.backbone(input_ids=torch.tensor([ids[:end]])).last_hidden_state[0, -1]
                for end in range(prompt_length, len(ids))
            ]
            expected.append(critic.head(torch.stack(states)).squeeze(-1))
    check_rows(values, expected)


def test_bfloat16_computes_near_float32_and_keeps_float32_gradients(tiny_model_path, batch):
    model = loading.load_actor(tiny_model_path, CPU)
    results, grads = [], []
    for dtype in (torch.float32, torch.bfloat16):
        logprobs = forward_pass(batch, actor=model, compute_dtype=dtype).logprobs
        model.zero_grad()
        logprobs.sum().backward()
        results.append(logprobs.detach())
        assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
        grads.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    gap = (results[0] - results[1]).abs()
    assert 1e-5 < gap.max() < 0.3
    assert torch.cosine_similarity(grads[0], grads[1], dim=0) > 0.99
