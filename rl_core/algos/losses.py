"""Losses of actor and critic; each returns this micro-batch's share of the mini-batch's loss.

Legend: B responses, T response tokens (right-padded). Tensors are float [B, T] but for
`response_mask`, bool [B, T]; nothing outside it matters. `logprobs` and `values` are the current
model's and carry gradient; `old_` ones are from before the step's first update. `denominators` are
counted over the whole mini-batch, so the shares (losses, gradients and metrics alike) of its
micro-batches add up to those of the unsplit mini-batch.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.algos.masking import Aggregation, Denominators, aggregate, masked_sum

_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True)
class PolicyLoss:
    """A share of the policy loss; all are scalars, only `loss` carries gradient."""

    loss: Tensor
    clip_frac: Tensor
    """Share of tokens whose loss the clip changes."""
    approx_kl: Tensor
    """Mean of old_logprobs - logprobs, nats per token: how far the policy has moved."""


@dataclass(frozen=True)
class ValueLoss:
    """A share of the value loss; all are scalars, only `loss` carries gradient."""

    loss: Tensor
    clip_frac: Tensor
    """Share of tokens whose clipped error is the larger one."""
    prediction_mean: Tensor


def ppo_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
    aggregation: Aggregation,
    denominators: Denominators,
    importance_weights: Tensor | None = None,
) -> PolicyLoss:
    """Returns the clipped surrogate loss: max(-A r, -A clip(r, 1 - low, 1 + high)) per token.

    r = exp(logprobs - old_logprobs), the log-ratio clamped to [-20, 20] against overflow.

    `importance_weights`, see `truncated_importance_weights`, are constants that multiply each
    token's loss.

    Source: PPO (arXiv:1707.06347), equation 7; clip-higher: DAPO (arXiv:2503.14476), equation 10.
    """
    log_ratio = torch.where(response_mask, logprobs - old_logprobs, 0.0)
    ratio = _exp(log_ratio)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return _policy_loss(
        torch.maximum(plain, clipped),
        clipped > plain,
        log_ratio,
        response_mask,
        aggregation,
        denominators,
        importance_weights,
    )


def gspo_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
    aggregation: Aggregation,
    denominators: Denominators,
    importance_weights: Tensor | None = None,
) -> PolicyLoss:
    """Returns the clipped surrogate loss with one ratio per response, the geometric mean.

    s = exp(mean over the response's tokens of logprobs - old_logprobs); each token's gradient is
    that of s A logprobs (the variant GSPO-token). Useful clips are far narrower than PPO's: 3e-4
    and 4e-4 in the paper.

    Source: GSPO (arXiv:2507.18071), sections 4.1 and 4.3.
    """
    log_ratio = torch.where(response_mask, logprobs - old_logprobs, 0.0)
    lengths = response_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    sequence_log_ratio = (log_ratio.sum(dim=-1, keepdim=True) / lengths).detach()
    # Its value is the sequence's ratio, its gradient that of the token's own log-prob.
    ratio = _exp(sequence_log_ratio + log_ratio - log_ratio.detach())
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return _policy_loss(
        torch.maximum(plain, clipped),
        clipped > plain,
        log_ratio,
        response_mask,
        aggregation,
        denominators,
        importance_weights,
    )


def cispo_policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
    aggregation: Aggregation,
    denominators: Denominators,
    importance_weights: Tensor | None = None,
) -> PolicyLoss:
    """Returns -A c logprobs per token, c being the clipped ratio as a constant.

    No token loses its gradient by being clipped; only its weight is bounded.

    Source: MiniMax-M1 (arXiv:2506.13585), section 3.1.
    """
    log_ratio = torch.where(response_mask, logprobs - old_logprobs, 0.0)
    ratio = _exp(log_ratio.detach())
    weight = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return _policy_loss(
        -advantages * weight * torch.where(response_mask, logprobs, 0.0),
        ratio != weight,
        log_ratio,
        response_mask,
        aggregation,
        denominators,
        importance_weights,
    )


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def _policy_loss(
    per_token: Tensor,
    is_clipped: Tensor,
    log_ratio: Tensor,
    response_mask: Tensor,
    aggregation: Aggregation,
    denominators: Denominators,
    importance_weights: Tensor | None,
) -> PolicyLoss:
    """Returns the aggregated loss of the tokens, [B, T], with its metrics."""
    if importance_weights is not None:
        per_token = per_token * importance_weights
    with torch.no_grad():
        clip_frac = masked_sum(is_clipped.to(log_ratio.dtype), response_mask)
        approx_kl = -log_ratio.sum()
    return PolicyLoss(
        loss=aggregate(per_token, response_mask, aggregation, denominators),
        clip_frac=clip_frac / denominators.num_tokens,
        approx_kl=approx_kl / denominators.num_tokens,
    )


def clipped_value_loss(
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    response_mask: Tensor,
    *,
    value_clip: float,
    denominators: Denominators,
) -> ValueLoss:
    """Returns the clipped value loss: half the token mean of the larger of two squared errors.

    One error is of the value, the other of the value kept within `value_clip` of the old one.

    Source: OpenAI baselines' PPO2; Engstrom et al. 2020 (arXiv:2005.12729), section 3.
    """
    values, old_values, returns = (
        torch.where(response_mask, x, 0.0) for x in (values, old_values, returns)
    )
    near_old = torch.clamp(values, old_values - value_clip, old_values + value_clip)
    plain = (values - returns).square()
    clipped = (near_old - returns).square()
    loss = masked_sum(torch.maximum(plain, clipped), response_mask) / (2 * denominators.num_tokens)
    with torch.no_grad():
        is_clipped = (clipped > plain).to(values.dtype)
        clip_frac = masked_sum(is_clipped, response_mask) / denominators.num_tokens
        prediction_mean = masked_sum(values, response_mask) / denominators.num_tokens
    return ValueLoss(loss=loss, clip_frac=clip_frac, prediction_mean=prediction_mean)


def truncated_importance_weights(
    old_logprobs: Tensor, rollout_logprobs: Tensor, response_mask: Tensor, *, cap: float
) -> Tensor:
    """Returns min(exp(old_logprobs - rollout_logprobs), cap) per token, float [B, T], 0 outside.

    Corrects for tokens that were sampled by an engine whose probabilities differ from the learner's
    (kernels, dtype): `old_logprobs` are the learner's, `rollout_logprobs` as the engine returned
    them. The cap bounds the variance. Constants: no gradient flows.

    Source: Ionides 2008; Yao et al. 2025, "Your efficient RL framework secretly brings you
        off-policy RL training".
    """
    with torch.no_grad():
        log_ratio = torch.where(response_mask, old_logprobs - rollout_logprobs, 0.0)
        weights = log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp().clamp(max=cap)
        return torch.where(response_mask, weights, 0.0)
