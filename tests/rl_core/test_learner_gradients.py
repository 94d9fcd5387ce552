"""Gradients of the learner's losses: independent of the split, equal to a slow loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from rl_core.batch import TrainBatch
from rl_core.config import RunConfig
from rl_core.learner import STATE_FOLDER, Learner
from rl_core.learner_state import read_state
from rl_core.preparation import Prepared

MakeBatch = Callable[..., TrainBatch]
MakeSettings = Callable[..., RunConfig]


def gradient(learner: Learner, batch: TrainBatch, which: str) -> Tensor:
    """The gradient of one mini-batch holding the whole batch, flattened, in float64."""
    return accumulated(learner, learner.prepare(batch)[0], which)


def accumulated(learner: Learner, prepared: Prepared, which: str) -> Tensor:
    loss = learner._actor_loss if which == "actor" else learner._critic_loss
    model = learner._actor if which == "actor" else learner._critic
    assert model is not None
    optimized = learner._actor_optimized if which == "actor" else learner._critic_optimized
    model.zero_grad()
    learner._accumulate(prepared, optimized, loss)
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("which", ["actor", "critic"])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"])
def test_splitting_into_micro_batches_changes_no_gradient(
    tiny_model_path: Path,
    make_batch: MakeBatch,
    which: str,
    aggregation: str,
    settings: MakeSettings,
) -> None:
    gradients = []
    for micro_batch_tokens in (1, 23, 50, 10_000):
        actor = {"micro_batch_tokens": micro_batch_tokens, "loss_aggregation": aggregation}
        config = settings(
            actor=actor | {"mini_batch_size": 8, "entropy_coef": 0.01},
            algorithm={"kl_mode": "loss", "kl_estimator": "k3", "kl_coef": 0.1},
        )
        gradients.append(gradient(Learner(config, tiny_model_path), make_batch(), which))
    unsplit = gradients.pop()
    assert unsplit.norm() > 1e-3
    for split in gradients:
        assert (split - unsplit).norm() / unsplit.norm() < 1e-6


@pytest.mark.parametrize("which", ["actor", "critic"])
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_responses_cut_off_teach_nothing_where_they_are_masked(
    tiny_model_path: Path,
    make_batch: MakeBatch,
    which: str,
    aggregation: str,
    settings: MakeSettings,
) -> None:
    config = settings(
        actor={"mini_batch_size": 8, "loss_aggregation": aggregation, "entropy_coef": 0.01},
        algorithm={"kl_mode": "none", "mask_truncated": True},
    )
    batch = make_batch()
    batch.truncated[[1, 4, 5]] = True
    learner = Learner(config, tiny_model_path)
    prepared, _ = learner.prepare(batch)
    whole = accumulated(learner, prepared, which)
    others = accumulated(learner, prepared.select(torch.tensor([0, 2, 3, 6, 7])), which)
    assert whole.norm() > 1e-3
    assert (whole - others).norm() / whole.norm() < 1e-6
    batch.truncated[:] = True
    prepared, _ = learner.prepare(batch)
    assert accumulated(learner, prepared, which).norm() == 0.0


def slow_actor_gradient(folder: Path, prepared: Prepared, rows: list[int]) -> Tensor:
    """The whole actor loss of some rows (token mean), one row and one token at a time."""
    actor = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    batch = prepared.batch
    assert prepared.ref_logprobs is not None
    num_tokens = int(batch.response_lengths[rows].sum())
    loss = torch.zeros(())
    for row in rows:
        start, end = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        ids = batch.input_ids[row, :end]
        full = actor(ids.unsqueeze(0)).logits[0].log_softmax(-1)
        for t, position in enumerate(range(start, end)):
            predicted = full[position - 1]
            logprob = predicted[ids[position]]
            ratio = (logprob - prepared.old_logprobs[row, t]).exp()
            advantage = prepared.advantages[row, t]
            surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            gap = logprob - prepared.ref_logprobs[row, t]
            entropy = -(predicted.exp() * predicted).sum()
            engine_gap = prepared.old_logprobs[row, t] - batch.rollout_logprobs[row, t]
            loss = loss - surrogate * engine_gap.exp().clamp(max=2.0)
            loss = loss + 0.1 * ((-gap).exp() - 1 + gap) - 0.05 * entropy
    (loss / num_tokens).backward()
    return torch.cat([p.grad.flatten() for p in actor.parameters()])


def slow_critic_gradient(learner: Learner, prepared: Prepared, rows: list[int]) -> Tensor:
    """The value loss of some rows, one row at a time."""
    critic, batch = learner._critic, prepared.batch
    assert critic is not None
    assert prepared.values is not None
    assert prepared.returns is not None
    critic.zero_grad()
    for row in rows:
        start, end = int(batch.prompt_lengths[row]), int(batch.lengths[row])
        states = critic.backbone(batch.input_ids[row : row + 1, :end]).last_hidden_state[0]
        values = critic.head(states[start - 1 : end - 1]).squeeze(-1)
        old, target = (x[row, : len(values)] for x in (prepared.values, prepared.returns))
        kept = torch.maximum(torch.minimum(values, old + 0.5), old - 0.5)
        worse = torch.maximum((values - target).square(), (kept - target).square())
        (worse.sum() / 2 / int(batch.response_lengths[rows].sum())).backward()
    result = torch.cat([p.grad.flatten() for p in critic.parameters() if p.grad is not None])
    critic.zero_grad()
    return result


def test_each_mini_batch_moves_along_the_gradient_of_its_own_loss(
    tiny_model_path: Path, tmp_path: Path, make_batch: MakeBatch, settings: MakeSettings
) -> None:
    """Against a slow loop over transformers' logits, with every term of the loss at work."""
    config = settings(
        actor={"entropy_coef": 0.05, "lr": 1e-12},  # the second mini-batch sees the same weights
        critic={"lr": 1e-12},
        algorithm={"kl_mode": "loss", "kl_estimator": "k3", "kl_coef": 0.1},
    )
    learner = Learner(config, tiny_model_path)
    prepared, _ = learner.prepare(make_batch())
    # As after some updates: ratios near 1 and beyond the clip, a reference and a gap of their own.
    mask, generator = prepared.batch.response_mask, torch.Generator().manual_seed(0)
    old, ref, gap = torch.randn((3, *mask.shape), generator=generator) * 0.2
    prepared.old_logprobs.add_(torch.where(mask, old, 0.0))
    assert prepared.ref_logprobs is not None
    prepared.ref_logprobs.add_(torch.where(mask, ref, 0.0))
    prepared.batch.rollout_logprobs.copy_(torch.where(mask, prepared.old_logprobs + 3 * gap, 0.0))
    halves = [[0, 1, 2, 3], [4, 5, 6, 7]]
    actor = [slow_actor_gradient(tiny_model_path, prepared, rows) for rows in halves]
    critic = [slow_critic_gradient(learner, prepared, rows) for rows in halves]
    metrics = learner.update(prepared)
    for name, gradients in (("actor", actor), ("critic", critic)):
        norms = [gradient.norm().item() for gradient in gradients]
        assert abs(norms[0] - norms[1]) > 1e-3
        assert metrics[f"{name}/grad_norm"] == pytest.approx(sum(norms) / 2, rel=1e-4)
    # Norms could agree by accident: the first moments, a tenth of the last gradient, could not.
    learner.save(tmp_path)
    moments = read_state(tmp_path / STATE_FOLDER)[0]
    names = [name for name, _ in learner._actor.named_parameters()]
    # Two steps leave 0.1 g2 + 0.09 g1, each clipped to norm 1.
    clipped = [gradient / max(gradient.norm().item(), 1.0) for gradient in actor]
    torch.testing.assert_close(
        torch.cat([moments[f"actor.{name}.exp_avg"].flatten() for name in names]),
        0.1 * clipped[1] + 0.09 * clipped[0],
        atol=1e-6,
        rtol=1e-3,
    )
