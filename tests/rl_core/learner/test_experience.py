from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.batch import TrainBatch, collate
from rl_core.config.run import AlgorithmConfig
from rl_core.learner.experience import (
    Prepared,
    assemble,
    batch_metrics,
    kl_per_response,
    policy_metrics,
    rollout_columns,
)
from rl_core.types import Rollout

OLD = torch.tensor([[-1.0, -2.0, 0.0], [-3.0, 0.0, 0.0]])
REF = torch.tensor([[-1.5, -1.0, 0.0], [-5.0, 0.0, 0.0]])
VALUES = torch.tensor([[0.5, 0.25, 0.0], [1.0, 0.0, 0.0]])


@pytest.fixture
def batch(make_rollout: Callable[..., Rollout]) -> TrainBatch:
    return collate(
        [
            make_rollout([1, 2], [3, 4], logprobs=[-1.1, -2.0], score=1.0, verdict="correct"),
            make_rollout([1], [5], logprobs=[-2.0], score=0.1, group_id=1, finish_reason="length"),
        ],
        pad_id=0,
    )


def prepare(
    batch: TrainBatch,
    *,
    ref: Tensor | None = REF,
    values: Tensor | None = VALUES,
    **algorithm: Any,
) -> Prepared:
    width = batch.rollout_logprobs.shape[1]
    return assemble(
        batch,
        old_logprobs=OLD[:, :width],
        ref_logprobs=None if ref is None else ref[:, :width],
        values=None if values is None else values[:, :width],
        algorithm=AlgorithmConfig.model_validate(algorithm),
        kl_coef=0.1,
    )


def test_the_score_stands_at_the_last_token_less_the_kl_penalty(batch: TrainBatch) -> None:
    # k1 is 0.5, -1 and 2; a tenth of it is taken off the scores 1.0 and 0.1.
    expected = torch.tensor([[-0.05, 1.1], [-0.1, 0.0]])
    torch.testing.assert_close(prepare(batch).token_rewards, expected)


def test_kl_as_a_loss_leaves_the_rewards_alone(batch: TrainBatch) -> None:
    prepared = prepare(batch, kl_mode="loss")
    torch.testing.assert_close(prepared.token_rewards, torch.tensor([[0.0, 1.0], [0.1, 0.0]]))
    assert kl_per_response(prepared) == pytest.approx((-0.5 + 2.0) / 2)


def test_without_a_reference_there_is_no_kl(batch: TrainBatch) -> None:
    prepared = prepare(batch, ref=None)
    torch.testing.assert_close(prepared.token_rewards, torch.tensor([[0.0, 1.0], [0.1, 0.0]]))
    assert kl_per_response(prepared) == 0.0
    assert all(math.isnan(x) for x in rollout_columns(prepared)["ref_kl"])


def test_gae_returns_are_the_rewards_to_go_and_advantages_are_whitened(batch: TrainBatch) -> None:
    prepared = prepare(batch)
    assert prepared.returns is not None
    torch.testing.assert_close(prepared.returns, torch.tensor([[1.05, 1.1], [-0.1, 0.0]]))
    raw = torch.tensor([1.05 - 0.5, 1.1 - 0.25, -0.1 - 1.0])
    expected = (raw - raw.mean()) / raw.std()
    torch.testing.assert_close(prepared.advantages[batch.response_mask], expected)


@pytest.mark.parametrize(
    "estimator", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline", "reinforce_plus_plus"]
)
def test_critic_free_estimators_favour_the_better_response(
    make_rollout: Callable[..., Rollout], estimator: str
) -> None:
    rollouts = [
        make_rollout([1], [2, 3], score=1.0, verdict="correct"),
        make_rollout([1], [2, 4], score=0.1),
    ]
    prepared = prepare(collate(rollouts, 0), values=None, kl_mode="none", estimator=estimator)
    assert prepared.returns is None
    good, bad = prepared.advantages.tolist()
    assert good[0] > 0.4
    assert good == pytest.approx([-x for x in bad])
    assert good[0] == pytest.approx(good[1])


@pytest.mark.parametrize("estimator", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_the_gate_closes_groups_that_all_fail(
    make_rollout: Callable[..., Rollout], estimator: str
) -> None:
    # Rewards 0.1 and 0 without a correct response; beside them a group with one.
    rollouts = [
        make_rollout([1], [2], score=0.1, group_id=0),
        make_rollout([1], [3], score=0.0, group_id=0),
        make_rollout([1], [2], score=1.0, verdict="correct", group_id=1),
        make_rollout([1], [3], score=0.1, group_id=1),
    ]
    batch = collate(rollouts, 0)
    settings: dict[str, Any] = {"estimator": estimator, "kl_mode": "none", "group_size": 2}
    zeros = torch.zeros(4, 1)
    gated, ungated = (
        assemble(
            batch,
            old_logprobs=zeros,
            ref_logprobs=None,
            values=None,
            algorithm=AlgorithmConfig.model_validate(settings | {"outcome_gate": gate}),
            kl_coef=0.0,
        ).advantages.flatten()
        for gate in (True, False)
    )
    assert gated[:2].tolist() == [0.0, 0.0]
    assert gated[2] > 0.4
    assert ungated[0] > 0.04


def test_metrics_by_hand(batch: TrainBatch) -> None:
    algorithm = AlgorithmConfig()
    prepared = prepare(batch)
    metrics = batch_metrics(prepared, algorithm=algorithm, max_prompt_length=2)
    metrics |= policy_metrics(prepared, kl_coef=0.1)
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


def test_groups_without_spread_are_counted(make_rollout: Callable[..., Rollout]) -> None:
    rollouts = [make_rollout([1], [2], score=s, group_id=g) for s, g in ((0.1, 0), (0.1, 0))]
    prepared = prepare(collate(rollouts, 0), values=None, estimator="grpo")
    metrics = batch_metrics(
        prepared,
        algorithm=AlgorithmConfig(estimator="grpo"),
        max_prompt_length=9,
    )
    assert metrics["group/zero_spread_frac"] == 1.0


def test_columns_of_the_rollout_log_by_hand(batch: TrainBatch) -> None:
    prepared = prepare(batch)
    columns = rollout_columns(prepared)
    assert columns["reward"] == pytest.approx([1.05, -0.1])
    assert columns["value_mean"] == pytest.approx([0.375, 1.0])
    assert columns["ref_kl"] == pytest.approx([-0.5, 2.0])
    assert columns["logprob_gap_mean"] == pytest.approx([0.05, 1.0])
    assert columns["advantage_mean"] == pytest.approx(
        [prepared.advantages[0].mean().item(), prepared.advantages[1, 0].item()]
    )


def test_select_cuts_every_tensor_alike(batch: TrainBatch) -> None:
    chosen = prepare(batch).select(torch.tensor([1]))
    assert len(chosen.batch) == 1
    assert chosen.old_logprobs.tolist() == [[-3.0]]
    assert chosen.values is not None
    assert chosen.values.tolist() == [[1.0]]
    assert chosen.kl is not None
    assert chosen.kl.tolist() == [[2.0]]
    assert prepare(batch, ref=None).select(torch.tensor([0])).ref_logprobs is None
