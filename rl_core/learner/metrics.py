"""The metrics of a step's batch and of its policy, and the rollout log's columns.

Legend: B responses, T response tokens. Names are verl's: dashboards and old logs stay comparable.
"""

import math
from functools import partial

import torch
from torch import Tensor

from rl_core.algos import advantages as adv
from rl_core.algos.masking import masked_mean, masked_sum
from rl_core.batch import TrainBatch, balanced_rows
from rl_core.config.algorithm import ActorConfig, AlgorithmConfig
from rl_core.learner.experience import Experience


def kl_per_response(experience: Experience) -> float:
    """Returns the mean over responses of their summed KL, in nats; 0 without a reference."""
    kl = experience.kl
    if kl is None:
        return 0.0
    return float(masked_sum(kl, experience.batch.sampled_mask, dim=-1).mean())


def batch_metrics(
    experience: Experience,
    *,
    algorithm: AlgorithmConfig,
    max_prompt_length: int,
    num_ranks: int = 1,
) -> dict[str, float]:
    """Returns the metrics of a step's whole batch, under verl's names.

    `max_prompt_length`, in tokens, is for the share of prompts that reach it. The batch's tokens
    are divided among the learner's `num_ranks`.
    """
    batch, mask, advantages = experience.batch, experience.batch.sampled_mask, experience.advantages
    assert advantages is not None, "known after the update"
    metrics = {
        **_three("critic/score", batch.outcomes),
        **_three("critic/rewards", adv.response_sums(experience.token_rewards, mask)),
        **_three("critic/advantages", advantages[mask]),
        **_three("response_length", batch.response_lengths.float()),
        "response_length/clip_ratio": float(batch.truncated.float().mean()),
        **_three("prompt_length", batch.prompt_lengths.float()),
        "prompt_length/clip_ratio": float(
            (batch.prompt_lengths >= max_prompt_length).float().mean()
        ),
        **_sequence_lengths(batch, num_ranks),
    }
    if algorithm.formula.needs_groups:
        group_ids, outcomes = batch.group_ids, batch.outcomes
        if batch.unscored is not None:
            group_ids, outcomes = group_ids[~batch.unscored], outcomes[~batch.unscored]
        spread = adv.zero_spread_fraction(outcomes, group_ids) if len(group_ids) else 1.0
        metrics["group/zero_spread_frac"] = spread
    if experience.values is not None and experience.returns is not None:
        values, returns = experience.values[mask], experience.returns[mask]
        unexplained = (returns - values).var(unbiased=False)
        metrics |= {
            **_three("critic/values", values),
            **_three("critic/returns", returns),
            "critic/vf_explained_var": float(
                1.0 - unexplained / (returns.var(unbiased=False) + 1e-5)
            ),
        }
    return metrics


def weight_metrics(experience: Experience, actor: ActorConfig) -> dict[str, float]:
    """Returns what the tokens' weights leave of a step; without weights nothing.

    `rollout/ess_frac` is the effective sample size, (sum w)^2 / (n sum w^2): 1 if all are equal.
    """
    mask, old, advantages = experience.loss_mask, experience.old_logprobs, experience.advantages
    assert old is not None, "known after the update"
    assert advantages is not None, "known after the update"
    weights = actor.token_weights(old, old, experience.batch.rollout_logprobs, advantages, mask)
    if weights is None or not bool(mask.any()):
        return {}
    kept = weights[mask].double()
    squares = kept.square().sum().clamp(min=1e-30)
    return {
        "rollout/ess_frac": float(kept.sum().square() / (len(kept) * squares)),
        "rollout/dropped_frac": float((kept == 0).double().mean()),
    }


def policy_metrics(experience: Experience, *, kl_coef: float) -> dict[str, float]:
    """Returns how far the policy is from the engines' and from the reference.

    `experience` is the step's whole batch, as the update returns it.
    """
    batch, mask = experience.batch, experience.batch.sampled_mask
    gap = torch.where(mask, _gap(experience), 0.0)
    metrics = {
        "rollout/logprob_gap_mean": float(masked_mean(gap, mask)),
        "rollout/logprob_gap_max": float(gap.max()),
    }
    kl = experience.kl
    if kl is not None:
        per_response = masked_sum(kl, mask, dim=-1) / batch.num_sampled
        metrics |= {"critic/kl": float(per_response.mean()), "critic/kl_coeff": kl_coef}
    return metrics


def teacher_metrics(experience: Experience, *, bound: float) -> dict[str, float]:
    """Returns how far the policy is from its teacher, in nats per sampled token; falls to 0."""
    mask, taught, old = experience.loss_mask, experience.teacher_logprobs, experience.old_logprobs
    if taught is None or not bool(mask.any()):
        return {}
    assert old is not None, "known after the update"
    gap = (old - taught)[mask]
    return {
        "teacher/kl": float(gap.mean()),
        "teacher/kl_max": float(gap.max()),
        "teacher/bounded_frac": float((gap.abs() > bound).float().mean()),
    }


def _gap(experience: Experience) -> Tensor:
    """Returns how far learner and engine disagree at each token, in nats, [B, T]."""
    assert experience.old_logprobs is not None, "known after the update"
    return (experience.old_logprobs - experience.batch.rollout_logprobs).abs()


def _sequence_lengths(batch: TrainBatch, num_ranks: int) -> dict[str, float]:
    """Returns the tokens of each learner rank, with rows in their order and balanced.

    Source: verl 0.9, verl/utils/seqlen_balancing.py, log_seqlen_unbalance.
    """
    size = len(batch) // num_ranks
    as_they_come = [int(batch.lengths[i * size : (i + 1) * size].sum()) for i in range(num_ranks)]
    balanced = [int(batch.lengths[rows].sum()) for rows in balanced_rows(batch, num_ranks)]
    lengths = {
        "min": min(as_they_come),
        "max": max(as_they_come),
        "minmax_diff": max(as_they_come) - min(as_they_come),
        "balanced_min": min(balanced),
        "balanced_max": max(balanced),
        "mean": int(batch.lengths.sum()) / num_ranks,
    }
    return {f"global_seqlen/{name}": float(number) for name, number in lengths.items()}


def _three(name: str, values: Tensor) -> dict[str, float]:
    return {
        f"{name}/mean": float(values.mean()),
        f"{name}/max": float(values.max()),
        f"{name}/min": float(values.min()),
    }


def rollout_columns(experience: Experience) -> dict[str, list[float]]:
    """Returns one number per rollout, under the names of the rollout log's columns.

    `reward` is the score less the KL penalty and `ref_kl` the response's KL in nats, both summed
    over the tokens that the model sampled; NaN if there is no critic or no reference.
    """
    batch, mask = experience.batch, experience.batch.sampled_mask

    def total(per_token: Tensor | None, divided_by: Tensor | int = 1) -> list[float]:
        if per_token is None:
            return [math.nan] * len(batch)
        return list((masked_sum(per_token, mask, dim=-1) / divided_by).tolist())

    mean = partial(total, divided_by=batch.num_sampled)
    return {
        "reward": total(experience.token_rewards),
        "advantage_mean": mean(experience.advantages),
        "value_mean": mean(experience.values),
        "logprob_gap_mean": mean(_gap(experience)),
        "ref_kl": total(experience.kl),
    }
