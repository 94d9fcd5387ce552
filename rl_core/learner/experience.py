"""Between forward passes and updates: log-probs, values and rewards -> token rewards -> advantages.

Legend: B responses, T response tokens. Nothing here carries gradient or changes any state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.algos import advantages as adv
from rl_core.algos.kl import KlEstimator, kl_estimate
from rl_core.algos.masking import masked_mean, masked_sum, whiten
from rl_core.batch import TrainBatch
from rl_core.config.run import GROUP_ESTIMATORS, AlgorithmConfig

_GROUP_ADVANTAGES = {
    "grpo": adv.grpo_advantages,
    "dr_grpo": adv.dr_grpo_advantages,
    "rloo": adv.rloo_advantages,
    "reinforce_plus_plus_baseline": adv.reinforce_plus_plus_baseline_advantages,
}


@dataclass(frozen=True)
class Prepared:
    """A batch with all that its update needs; all tensors are constants, float32 [B, T]."""

    batch: TrainBatch
    loss_mask: Tensor
    """Response tokens that are learned from, bool [B, T]: all, unless `mask_truncated`."""
    old_logprobs: Tensor
    """Of the policy before the step's first update; where `is_on_policy`, 0 until that has run."""
    is_on_policy: bool
    """The step has one update, whose own forward pass fills `old_logprobs`: the ratio is 1."""
    token_rewards: Tensor
    """The score at the last token, less the KL penalty (`kl_mode=reward`)."""
    advantages: Tensor
    ref_logprobs: Tensor | None
    kl_estimator: KlEstimator
    values: Tensor | None
    returns: Tensor | None

    @property
    def kl(self) -> Tensor | None:
        """Per-token estimate of the KL to the reference, of the policy before the update."""
        if self.ref_logprobs is None:
            return None
        return kl_estimate(self.old_logprobs, self.ref_logprobs, self.kl_estimator)

    def select(self, rows: Tensor) -> Prepared:
        """Returns the given rows (int64 [b]), trimmed to the longest of them."""
        batch = self.batch.select(rows)
        num_tokens = batch.rollout_logprobs.shape[1]
        rows = rows.to(self.old_logprobs.device)

        def cut(tensor: Tensor) -> Tensor:
            return tensor[rows, :num_tokens]

        def cut_optional(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else cut(tensor)

        return Prepared(
            batch=batch,
            loss_mask=cut(self.loss_mask),
            old_logprobs=cut(self.old_logprobs),
            is_on_policy=self.is_on_policy,
            token_rewards=cut(self.token_rewards),
            advantages=cut(self.advantages),
            ref_logprobs=cut_optional(self.ref_logprobs),
            kl_estimator=self.kl_estimator,
            values=cut_optional(self.values),
            returns=cut_optional(self.returns),
        )


def assemble(
    batch: TrainBatch,
    *,
    old_logprobs: Tensor | None,
    ref_logprobs: Tensor | None,
    values: Tensor | None,
    algorithm: AlgorithmConfig,
    kl_coef: float,
) -> Prepared:
    """Returns the batch with token rewards and advantages.

    Args:
        batch: B rollouts; groups must be whole.
        old_logprobs: float32 [B, T]; None to take those of the step's only update, and the
            engines' for a KL penalty in the reward.
        ref_logprobs: float32 [B, T]; None if no KL is wanted.
        values: float32 [B, T]; needed by estimator `gae` alone.
        algorithm: estimator, discounts and kind of KL.
        kl_coef: this step's KL coefficient.
    """
    mask = batch.response_mask
    token_rewards = adv.end_rewards(batch.rewards, mask)
    if ref_logprobs is not None and algorithm.kl_mode == "reward":
        logprobs = batch.rollout_logprobs if old_logprobs is None else old_logprobs
        kl = kl_estimate(logprobs, ref_logprobs, algorithm.kl_estimator)
        token_rewards = token_rewards - kl_coef * torch.where(mask, kl, 0.0)
    advantages, returns = _advantages(batch, token_rewards, values, algorithm)
    # In the loss alone: a response cut off still counts in its group's mean.
    is_learned = ~batch.truncated if algorithm.mask_truncated else torch.ones_like(batch.truncated)
    return Prepared(
        batch=batch,
        loss_mask=mask & is_learned.unsqueeze(-1),
        old_logprobs=(
            torch.zeros_like(batch.rollout_logprobs) if old_logprobs is None else old_logprobs
        ),
        is_on_policy=old_logprobs is None,
        token_rewards=token_rewards,
        advantages=advantages,
        ref_logprobs=ref_logprobs,
        kl_estimator=algorithm.kl_estimator,
        values=values,
        returns=returns,
    )


def _advantages(
    batch: TrainBatch, token_rewards: Tensor, values: Tensor | None, algorithm: AlgorithmConfig
) -> tuple[Tensor, Tensor | None]:
    """Returns advantages, and the critic's targets where there is a critic."""
    mask = batch.response_mask
    if algorithm.estimator == "gae":
        assert values is not None, "estimator gae needs the critic's values"
        raw, returns = adv.generalized_advantages(
            token_rewards, values, mask, gamma=algorithm.gamma, gae_lambda=algorithm.gae_lambda
        )
        return whiten(raw, mask), returns
    if algorithm.estimator == "reinforce_plus_plus":
        return adv.reinforce_plus_plus_advantages(token_rewards, mask, gamma=algorithm.gamma), None
    if algorithm.outcome_gate:
        mask = mask & adv.outcome_gate(batch.correct, batch.group_ids).unsqueeze(-1)
    outcomes = adv.response_sums(token_rewards, batch.response_mask)
    return _GROUP_ADVANTAGES[algorithm.estimator](outcomes, batch.group_ids, mask), None


def kl_per_response(prepared: Prepared) -> float:
    """Returns the mean over responses of their summed KL, in nats; 0 without a reference."""
    kl = prepared.kl
    if kl is None:
        return 0.0
    return float(masked_sum(kl, prepared.batch.response_mask, dim=-1).mean())


def batch_metrics(
    prepared: Prepared, *, algorithm: AlgorithmConfig, max_prompt_length: int
) -> dict[str, float]:
    """Returns what a prepared batch says about the step, under verl's names.

    Args:
        prepared: the step's whole batch.
        algorithm: whether there are groups.
        max_prompt_length: tokens, for the share of prompts that fill it.
    """
    batch, mask = prepared.batch, prepared.batch.response_mask
    metrics = {
        **_three("critic/score", batch.rewards),
        **_three("critic/rewards", adv.response_sums(prepared.token_rewards, mask)),
        **_three("critic/advantages", prepared.advantages[mask]),
        **_three("response_length", batch.response_lengths.float()),
        "response_length/clip_ratio": float(batch.truncated.float().mean()),
        **_three("prompt_length", batch.prompt_lengths.float()),
        "prompt_length/clip_ratio": float(
            (batch.prompt_lengths >= max_prompt_length).float().mean()
        ),
        **_sequence_lengths(int(batch.lengths.sum())),
    }
    if algorithm.estimator in GROUP_ESTIMATORS:
        metrics["group/zero_spread_frac"] = adv.zero_spread_fraction(batch.rewards, batch.group_ids)
    if prepared.values is not None and prepared.returns is not None:
        values, returns = prepared.values[mask], prepared.returns[mask]
        unexplained = (returns - values).var(unbiased=False)
        metrics |= {
            **_three("critic/values", values),
            **_three("critic/returns", returns),
            "critic/vf_explained_var": float(
                1.0 - unexplained / (returns.var(unbiased=False) + 1e-5)
            ),
        }
    return metrics


def policy_metrics(prepared: Prepared, *, kl_coef: float) -> dict[str, float]:
    """Returns how far the policy stood from the engines' and from the reference, once it is known.

    Args:
        prepared: the step's whole batch, `old_logprobs` filled.
        kl_coef: this step's KL coefficient.
    """
    batch, mask = prepared.batch, prepared.batch.response_mask
    gap = torch.where(mask, (prepared.old_logprobs - batch.rollout_logprobs).abs(), 0.0)
    metrics = {
        "rollout/logprob_gap_mean": float(masked_mean(gap, mask)),
        "rollout/logprob_gap_max": float(gap.max()),
    }
    kl = prepared.kl
    if kl is not None:
        per_response = masked_sum(kl, mask, dim=-1) / batch.response_lengths
        metrics |= {"critic/kl": float(per_response.mean()), "critic/kl_coeff": kl_coef}
    return metrics


def _sequence_lengths(num_tokens: int) -> dict[str, float]:
    """Returns verl's `global_seqlen/*`: how evenly a step's tokens lie on the learner's ranks.

    There is one rank here, which has all of them, balanced or not.

    Source: verl 0.9, verl/utils/seqlen_balancing.py, log_seqlen_unbalance.
    """
    of_one_rank = ("min", "max", "mean", "balanced_min", "balanced_max")
    lengths = {f"global_seqlen/{name}": float(num_tokens) for name in of_one_rank}
    return lengths | {"global_seqlen/minmax_diff": 0.0}


def _three(name: str, values: Tensor) -> dict[str, float]:
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def rollout_columns(prepared: Prepared) -> dict[str, list[float]]:
    """Returns one number per rollout, under the names of the rollout log's columns.

    `reward` is the score less the KL penalty and `ref_kl` the response's KL in nats, both summed
    over its tokens; NaN where there is no critic or no reference.
    """
    batch, mask = prepared.batch, prepared.batch.response_mask

    def mean(per_token: Tensor | None) -> list[float]:
        if per_token is None:
            return [math.nan] * len(batch)
        sums = masked_sum(per_token, mask, dim=-1)
        return [float(x) for x in sums / batch.response_lengths]

    def total(per_token: Tensor | None) -> list[float]:
        if per_token is None:
            return [math.nan] * len(batch)
        return [float(x) for x in masked_sum(per_token, mask, dim=-1)]

    return {
        "reward": total(prepared.token_rewards),
        "advantage_mean": mean(prepared.advantages),
        "value_mean": mean(prepared.values),
        "logprob_gap_mean": mean((prepared.old_logprobs - batch.rollout_logprobs).abs()),
        "ref_kl": total(prepared.kl),
    }
