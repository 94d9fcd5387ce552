"""The metrics of a step's batch and of its policy, and the rollout log's columns.

Legend: B responses, T response tokens. Names are verl's: dashboards and old logs stay comparable.
"""

import math
from functools import partial

import torch
from torch import Tensor

from rl_core.algos import advantages as adv
from rl_core.algos.masking import masked_mean, masked_sum
from rl_core.batch import balanced_rows
from rl_core.config.run import RunConfig
from rl_core.learner.experience import Experience


def step_metrics(experience: Experience, config: RunConfig, kl_coef: float) -> dict[str, float]:
    """Returns the metrics of a step's whole batch, as the update returns it, under verl's names."""
    batch = experience.batch
    mask = batch.sampled_mask
    advantages = experience.advantages
    old_logprobs = experience.old_logprobs
    assert advantages is not None, "known after the update"
    assert old_logprobs is not None, "known after the update"
    is_longest_prompt = batch.prompt_lengths >= config.data.max_prompt_length
    balanced = balanced_rows(batch, config.resources.learner_ranks)
    gap = torch.where(mask, experience.logprob_gap, 0.0)
    metrics = {
        **_three("critic/score", batch.outcomes),
        **_three("critic/rewards", adv.response_sums(experience.token_rewards, mask)),
        **_three("critic/advantages", advantages[mask]),
        **_three("response_length", batch.response_lengths.float()),
        "response_length/clip_ratio": float(batch.truncated.float().mean()),
        **_three("prompt_length", batch.prompt_lengths.float()),
        "prompt_length/clip_ratio": float(is_longest_prompt.float().mean()),
        **_sequence_lengths(batch.lengths, balanced),
        "rollout/logprob_gap_mean": float(masked_mean(gap, mask)),
        "rollout/logprob_gap_max": float(gap.max()),
    }
    if config.algorithm.formula.needs_groups:
        group_ids = batch.group_ids
        outcomes = batch.outcomes
        if batch.unscored is not None:
            group_ids = group_ids[~batch.unscored]
            outcomes = outcomes[~batch.unscored]
        spread = adv.zero_spread_fraction(outcomes, group_ids) if len(group_ids) else 1.0
        metrics["group/zero_spread_frac"] = spread
    if experience.values is not None and experience.returns is not None:
        metrics |= _critic_fit(experience.values[mask], experience.returns[mask])
    if (kl := experience.kl) is not None:
        per_response = masked_sum(kl, mask, dim=-1) / batch.num_sampled
        metrics |= {"critic/kl": float(per_response.mean()), "critic/kl_coeff": kl_coef}
    learned = experience.loss_mask
    if bool(learned.any()):
        weights = config.actor.token_weights(
            old_logprobs, old_logprobs, batch.rollout_logprobs, advantages, learned
        )
        if weights is not None:
            metrics |= _weight_shares(weights[learned].double())
        if experience.teacher_logprobs is not None:
            distance = (old_logprobs - experience.teacher_logprobs)[learned]
            metrics |= _teacher_distance(distance, config.teacher.bound)
    return metrics


def _critic_fit(values: Tensor, returns: Tensor) -> dict[str, float]:
    unexplained = (returns - values).var(unbiased=False)
    explained = 1.0 - unexplained / (returns.var(unbiased=False) + 1e-5)
    return {
        **_three("critic/values", values),
        **_three("critic/returns", returns),
        "critic/vf_explained_var": float(explained),
    }


def _weight_shares(weights: Tensor) -> dict[str, float]:
    """Returns what the weights of the tokens, float64 [N], leave of a step.

    `rollout/ess_frac` is the effective sample size, (sum w)^2 / (n sum w^2): 1 if all are equal.
    """
    squares = weights.square().sum().clamp(min=1e-30)
    return {
        "rollout/ess_frac": float(weights.sum().square() / (len(weights) * squares)),
        "rollout/dropped_frac": float((weights == 0).double().mean()),
    }


def _teacher_distance(distance: Tensor, bound: float) -> dict[str, float]:
    """Returns how far the policy is from its teacher, in nats per sampled token; falls to 0."""
    return {
        "teacher/kl": float(distance.mean()),
        "teacher/kl_max": float(distance.max()),
        "teacher/bounded_frac": float((distance.abs() > bound).float().mean()),
    }


def _sequence_lengths(lengths: Tensor, balanced_rows: list[Tensor]) -> dict[str, float]:
    """Returns the tokens of each learner rank, with rows in their order and balanced.

    Source: verl 0.9, verl/utils/seqlen_balancing.py, log_seqlen_unbalance.
    """
    num_ranks = len(balanced_rows)
    size = len(lengths) // num_ranks
    as_they_come = [int(lengths[i * size : (i + 1) * size].sum()) for i in range(num_ranks)]
    balanced = [int(lengths[rows].sum()) for rows in balanced_rows]
    numbers = {
        "min": min(as_they_come),
        "max": max(as_they_come),
        "minmax_diff": max(as_they_come) - min(as_they_come),
        "balanced_min": min(balanced),
        "balanced_max": max(balanced),
        "mean": int(lengths.sum()) / num_ranks,
    }
    return {f"global_seqlen/{name}": float(number) for name, number in numbers.items()}


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
    batch = experience.batch
    mask = batch.sampled_mask

    def total(per_token: Tensor | None, divided_by: Tensor | int = 1) -> list[float]:
        if per_token is None:
            return [math.nan] * len(batch)
        return list((masked_sum(per_token, mask, dim=-1) / divided_by).tolist())

    mean = partial(total, divided_by=batch.num_sampled)
    return {
        "reward": total(experience.token_rewards),
        "advantage_mean": mean(experience.advantages),
        "value_mean": mean(experience.values),
        "logprob_gap_mean": mean(experience.logprob_gap),
        "ref_kl": total(experience.kl),
    }
