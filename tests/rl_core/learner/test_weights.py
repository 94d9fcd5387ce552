"""Weights of whole responses, DPPO and the overlong penalty in a learner."""

import pytest
import torch

from rl_core.learner.metrics import step_metrics
from tests.support.experiences import experience_of
from tests.support.learners import without_timings

GRPO = {"estimator": "grpo", "group_size": 2, "kl_mode": "none"}
DROP = {"importance_level": "sequence", "importance_outside": "drop", "importance_cap": 3.0}


@pytest.mark.parametrize("actor", [DROP, {"offpolicy_mask": 0.05}, {"importance_low": 0.5}])
def test_micro_batches_change_nothing_of_it(new_learner, make_batch, actor):
    results = []
    for micro_batch_tokens in (16, 10_000):
        learner = new_learner(
            actor=actor | {"micro_batch_tokens": micro_batch_tokens, "mini_batch_size": 8},
            algorithm=GRPO,
        )
        batch = make_batch(group_size=2)
        metrics, _ = learner.learn(batch)
        results.append(without_timings(metrics))
    assert results[0] == pytest.approx(results[1], rel=1e-3, abs=1e-5)
    assert 0.0 < results[0]["rollout/ess_frac"] <= 1.0 + 1e-9
    assert 0.0 <= results[0]["rollout/dropped_frac"] < 1.0


def test_effective_sample_size_by_hand(settings, two_responses):
    # Weights of the three tokens: exp(0.1), 1 and exp(-1), of which the last is below 0.5.
    experience = experience_of(two_responses, kl_mode="none")
    a, b = torch.tensor(0.1).exp().item(), 1.0
    config = settings(actor={"importance_low": 0.5, "importance_outside": "drop"})
    metrics = step_metrics(experience, config, kl_coef=0.0)
    assert metrics["rollout/dropped_frac"] == pytest.approx(1 / 3)
    expected = (a + b) ** 2 / (3 * (a * a + b * b))
    assert metrics["rollout/ess_frac"] == pytest.approx(expected, abs=1e-6)
    plain = step_metrics(experience, settings(actor={"importance_cap": None}), kl_coef=0.0)
    assert "rollout/ess_frac" not in plain


def test_dppo_needs_no_log_probs_of_before(new_learner, make_batch):
    learner = new_learner(
        actor={"policy_loss": "dppo", "importance_cap": None, "ppo_epochs": 2}, algorithm=GRPO
    )
    metrics, _ = learner.learn(make_batch(group_size=2))
    assert "timing_s/old_log_prob" not in metrics
    assert metrics["actor/grad_norm"] > 0.0


@pytest.mark.parametrize("setting", [{"overlong_tokens": 4}, {"length_penalty": 0.5}])
def test_a_long_response_loses_reward_and_no_score(new_learner, make_batch, setting):
    batch = make_batch()
    batch.correct[::2] = True
    lengths = batch.response_lengths
    longest = int(lengths.max())
    learner = new_learner(
        algorithm={"kl_mode": "none", **setting},
        data={"train_batch_size": 8, "max_response_length": longest},
    )
    metrics, columns = learner.learn(batch)
    lost = -0.5 * batch.correct * lengths / longest
    if "overlong_tokens" in setting:
        lost = ((longest - 4 - lengths) / 4).clamp(-1, 0)
        assert lost.min() == -1.0
    assert columns["reward"] == pytest.approx((batch.rewards + lost).tolist())
    assert metrics["critic/score/mean"] == pytest.approx(batch.rewards.mean().item())
    assert metrics["critic/rewards/mean"] == pytest.approx((batch.rewards + lost).mean().item())


def test_too_long_sets_a_right_response_apart_from_its_group(two_responses):
    batch = two_responses.select(torch.tensor([0, 0]))
    batch.response_lengths[1] = 1
    settings = {"values": None, "estimator": "grpo", "group_size": 2, "overlong_tokens": 1}
    old = torch.zeros(2, 2)
    for kl_mode in ("none", "reward"):
        experience = experience_of(
            batch, old=old, ref=old, kl_mode=kl_mode, max_response_length=2, **settings
        )
        assert experience.advantages[0, 0] < 0 < experience.advantages[1, 0]
