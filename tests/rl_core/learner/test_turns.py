from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_core.batch import TrainBatch, collate
from rl_core.learner.experience import Experience
from rl_core.learner.metrics import rollout_columns
from rl_core.types import Rollout, Turn
from tests.support import experiences
from tests.support.learners import slow_actor_gradient, slow_critic_gradient

SAMPLED = [[1, 1, 0, 0, 1, 1], [1, 1, 1, 0, 0, 0]]
VALUES = torch.tensor([[0.5, 0.2, 9.0, 9.0, 0.4, 0.1], [0.3, 0.6, 0.9, 0.0, 0.0, 0.0]])


@pytest.fixture
def batch(make_rollout: Callable[..., Rollout]) -> TrainBatch:
    """Two turns with the env's words 7 8 between them, and a response of one."""
    two = make_rollout([1, 2], [3, 4, 7, 8, 5, 6], logprobs=[-1, -2, 0, 0, -3, -4], score=1.0)
    turns = (Turn(True, 2, "", 0.25), Turn(False, 2, ""), Turn(True, 2, ""))
    two = replace(two, completion=replace(two.completion, turns=turns))
    return collate([two, make_rollout([1], [5, 6, 7], group_id=1)], pad_id=0)


def experience_of(
    batch: TrainBatch, *, ref: Tensor | None = None, **algorithm: object
) -> Experience:
    old = batch.rollout_logprobs
    return experiences.experience_of(batch, old=old, ref=ref, values=VALUES, **algorithm)


def test_masks_by_hand(batch):
    assert batch.response_mask.int().tolist() == [[1] * 6, [1, 1, 1, 0, 0, 0]]
    assert batch.sampled_mask.int().tolist() == SAMPLED
    assert batch.sampled_ids().tolist() == [3, 4, 5, 6, 5, 6, 7]
    assert batch.num_sampled.tolist() == [4, 3]
    assert batch.outcomes.tolist() == [1.25, 0.0]
    second = batch.select(torch.tensor([1]))
    assert second.sampled_mask.tolist() == [[True] * 3]
    assert second.env_mask is not None
    assert batch.to(torch.device("cpu")).sampled_mask.int().tolist() == SAMPLED


def test_a_turn_is_paid_where_it_ends_and_the_env_pays_no_kl(batch):
    ref = torch.full_like(VALUES, -1.0)
    rewards = experience_of(batch, ref=ref, kl_estimator="k1").token_rewards
    # 0.1 of (logprob - ref) is taken: 0, -0.1, ., ., -0.2, -0.3.
    expected = torch.tensor([[0.0, 0.35, 0.0, 0.0, 0.2, 1.3], [0.0] * 6])
    torch.testing.assert_close(rewards, expected)
    experience = experience_of(batch, ref=ref, kl_estimator="k1")
    columns = rollout_columns(experience)
    assert columns["reward"] == pytest.approx([1.85, 0.0])
    assert columns["ref_kl"] == pytest.approx([-6.0, 0.0])
    assert columns["value_mean"] == pytest.approx([0.3, 0.6])


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (0.9, 0.8)])
def test_advantages_are_those_of_the_response_without_the_envs_words(batch, gamma, gae_lambda):
    experience = experience_of(batch, gamma=gamma, gae_lambda=gae_lambda)
    own = torch.tensor([0, 1, 4, 5])
    rewards, values = experience.token_rewards[0, own].tolist(), VALUES[0, own].tolist()
    advantage, expected = 0.0, []
    for reward, value, following in zip(
        rewards[::-1], values[::-1], [0.0, *values[:0:-1]], strict=True
    ):
        advantage = reward + gamma * following - value + gamma * gae_lambda * advantage
        expected.append(advantage + value)
    torch.testing.assert_close(experience.returns[0, own], torch.tensor(expected[::-1]))
    for tensor in (experience.returns, experience.advantages):
        assert tensor[0, 2:4].tolist() == [0.0, 0.0]


def test_groups_compare_all_that_a_response_earned(batch):
    together = replace(batch, group_ids=torch.zeros(2, dtype=torch.int64))
    experience = experience_of(together, estimator="dr_grpo", outcome_gate=False, group_size=2)
    expected = 0.625 * torch.tensor(SAMPLED) * torch.tensor([[1.0], [-1.0]])
    torch.testing.assert_close(experience.advantages, expected)


def with_turns(batch: TrainBatch) -> TrainBatch:
    """Turns by chance: the env has the words that are not the first or last of a response."""
    shape = batch.rollout_logprobs.shape
    chance = torch.from_numpy(np.random.default_rng(3).random(shape) < 0.5)
    columns = torch.arange(shape[1])
    inside = (columns > 0) & (columns < batch.response_lengths.unsqueeze(-1) - 1)
    env_mask = chance & inside
    assert env_mask.sum() > 10
    batch.rollout_logprobs[env_mask] = 0.0
    return replace(batch, env_mask=env_mask, turn_rewards=torch.zeros(shape))


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("group_size", [1, 4])
def test_gradients_are_those_of_a_slow_loop_over_the_models_own_tokens(
    new_learner, tiny_model_path, make_batch, group_size, checkpointing
):
    batch = with_turns(make_batch(group_size=group_size))
    gradients: dict[str, list[Tensor]] = {"actor": [], "critic": []}
    for micro_batch_tokens in (1, 23, 10_000):
        learner = new_learner(
            model={"gradient_checkpointing": checkpointing},
            actor={
                "micro_batch_tokens": micro_batch_tokens,
                "mini_batch_size": 4,
                "entropy_coef": 0.05,
            },
            algorithm={"kl_mode": "loss", "kl_estimator": "k2", "kl_coef": 0.1},
        )
        experience, _ = learner.make_experience(batch)
        assert experience.values is not None
        for tensor in (experience.old_logprobs, experience.ref_logprobs, experience.values):
            assert tensor[~batch.sampled_mask].eq(0).all()
        rows = list(range(len(batch)))
        if not gradients["actor"]:
            gradients["actor"] = [slow_actor_gradient(tiny_model_path, experience, rows)]
            gradients["critic"] = [slow_critic_gradient(learner, experience, rows)]
        for name, model in (("actor", learner.models.actor), ("critic", learner.models.critic)):
            model.zero_grad()
            accumulate = partial(learner.updater.accumulate, name, experience, kl_coef=0.1)
            learner.microbatching.run("update", batch, accumulate)
            found = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
            gradients[name].append(torch.cat(found))
    for expected, *found in gradients.values():
        assert expected.norm() > 1e-3
        for gradient in found:
            assert (gradient - expected).norm() / expected.norm() < 1e-4


def test_one_turn_is_what_it_was(new_learner, make_batch):
    """A mask that leaves every token to the model changes no bit."""
    plain = make_batch()
    masked = replace(
        plain,
        env_mask=torch.zeros_like(plain.response_mask),
        turn_rewards=torch.zeros_like(plain.rollout_logprobs),
    )
    learners = [new_learner(actor={"mini_batch_size": 4}) for _ in range(2)]
    (_, one), (_, other) = (
        learner.learn(batch) for learner, batch in zip(learners, (plain, masked), strict=True)
    )
    assert one == other
    for a, b in zip(*(learner.weights().values() for learner in learners), strict=True):
        assert torch.equal(a, b)
