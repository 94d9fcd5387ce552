import pytest
import torch

from rl_core.batch import collate
from rl_core.learner.metrics import rollout_columns, step_metrics
from tests.support.experiences import experience_of


def test_metrics_by_hand(two_responses, settings):
    experience = experience_of(two_responses)
    metrics = step_metrics(experience, settings(data={"max_prompt_length": 2}), kl_coef=0.1)
    expected = {
        "critic/score/mean": 0.55,
        "critic/rewards/max": 1.05,
        "critic/rewards/min": -0.1,
        "critic/advantages/mean": 0.0,
        "critic/values/mean": 1.75 / 3,
        "critic/returns/max": 1.1,
        "critic/kl": (-0.25 + 2.0) / 2,
        "critic/kl_coeff": 0.1,
        "response_length/mean": 1.5,
        "response_length/clip_ratio": 0.5,
        "prompt_length/max": 2.0,
        "prompt_length/clip_ratio": 0.5,
        "global_seqlen/mean": 6.0,
        "global_seqlen/minmax_diff": 0.0,
        "global_seqlen/balanced_min": 6.0,
        "global_seqlen/balanced_max": 6.0,
        "rollout/logprob_gap_mean": 1.1 / 3,
        "rollout/logprob_gap_max": 1.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    # Errors of the values 0.55, 0.85, -1.1 have variance 0.7406, the returns 0.3039.
    errors, returns = torch.tensor([0.55, 0.85, -1.1]), torch.tensor([1.05, 1.1, -0.1])
    explained = 1 - errors.var(correction=0) / (returns.var(correction=0) + 1e-5)
    assert metrics["critic/vf_explained_var"] == pytest.approx(explained.item(), abs=1e-5)
    assert "group/zero_spread_frac" not in metrics


def test_groups_without_spread_are_counted(make_rollout, settings):
    rollouts = [make_rollout([1], [2], score=s, group_id=g) for s, g in ((0.1, 0), (0.1, 0))]
    experience = experience_of(collate(rollouts, 0), values=None, estimator="grpo")
    metrics = step_metrics(
        experience, settings(algorithm={"estimator": "grpo", "group_size": 2}), kl_coef=0.0
    )
    assert metrics["group/zero_spread_frac"] == 1.0


def test_columns_of_the_rollout_log_by_hand(two_responses):
    experience = experience_of(two_responses)
    columns = rollout_columns(experience)
    assert columns["reward"] == pytest.approx([1.05, -0.1])
    assert columns["value_mean"] == pytest.approx([0.375, 1.0])
    assert columns["ref_kl"] == pytest.approx([-0.5, 2.0])
    assert columns["logprob_gap_mean"] == pytest.approx([0.05, 1.0])
    assert columns["advantage_mean"] == pytest.approx(
        [experience.advantages[0].mean().item(), experience.advantages[1, 0].item()]
    )
