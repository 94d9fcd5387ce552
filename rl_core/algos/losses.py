"""Losses of actor and critic, and their shares of a mini-batch's loss.

A policy loss is a function of `GivenTokens` and its row in `LOSSES`, at the end of this file. The
settings read that table without torch, so torch is imported only inside functions.

Legend: b responses of a micro-batch, T response tokens (right-padded). Tensors are float [b, T] but
for masks, bool [b, T]; nothing outside a mask matters. `logprobs` and `values` are the current
model's and carry gradient; `old_` ones are from before the step's first update. `denominators` are
counted over the whole mini-batch, so the shares (losses, gradients and metrics alike) of its
micro-batches add up to those of the unsplit mini-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rl_core.algos.masking import Aggregation, Denominators, aggregate, masked_sum

if TYPE_CHECKING:
    from torch import Tensor

_MAX_LOG_RATIO = 20.0
_MAX_RATIO = 20.0


@dataclass(frozen=True)
class GivenTokens:
    """What a policy loss is given: a micro-batch; only `logprobs` carries gradient."""

    logprobs: Tensor
    """Of the current policy, at the sampled tokens."""
    old_logprobs: Tensor
    """Of the policy before the step's first update."""
    rollout_logprobs: Tensor
    """As the engine returned them."""
    advantages: Tensor
    mask: Tensor
    """Tokens that are learned from, bool."""
    ref_logprobs: Tensor | None = None
    """Of the reference, if the run has one."""

    @property
    def log_ratio(self) -> Tensor:
        """Returns logprobs - old_logprobs, 0 outside the mask."""
        return (self.logprobs - self.old_logprobs).where(self.mask, 0.0)


@dataclass(frozen=True)
class TokenLoss:
    """A loss per token, before anything is summed or divided."""

    per_token: Tensor
    is_clipped: Tensor
    """Tokens whose loss the clip changes, bool."""


@dataclass(frozen=True)
class Loss:
    """A policy loss, as `actor.policy_loss` names it."""

    function: Callable[..., TokenLoss]
    """Takes `clip_eps_low` and `clip_eps_high` as keywords."""
    settings: tuple[str, ...] = ()
    """Settings of `actor` that the function takes as further keywords."""
    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    largest_clip: float | None = None
    """A larger one would clip nothing."""
    aggregation: Aggregation | None = None
    """None: that of the estimator."""
    ratio_to_engine: bool = False
    """It corrects for the engine by itself: no importance weight, and no log-probs of before."""
    needs_advantages: bool = True
    """A token without an advantage has a loss of 0."""


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
    given: GivenTokens,
    *,
    clip_eps_low: float,
    clip_eps_high: float,
    dual_clip: float | None = None,
) -> TokenLoss:
    """Returns the clipped surrogate loss: max(-A r, -A clip(r, 1 - low, 1 + high)) per token.

    r = exp(logprobs - old_logprobs), the log-ratio clamped to [-20, 20] against overflow. For A < 0
    that has no upper bound; with `dual_clip` c it is at most -A c, and a token above has no
    gradient: one whose ratio has exploded must not outweigh a batch.

    Source: PPO (arXiv:1707.06347), equation 7; clip-higher: DAPO (arXiv:2503.14476), equation 10;
        dual clip: Ye et al. 2019 (arXiv:1912.09729), equation 5.
    """
    advantages = given.advantages
    ratio = _exp(given.log_ratio)
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    loss = plain.maximum(clipped)
    if dual_clip is not None:
        loss = loss.minimum(-advantages * dual_clip).where(advantages < 0, loss)
    return TokenLoss(loss, is_clipped=loss != plain)


def gspo_policy_loss(given: GivenTokens, *, clip_eps_low: float, clip_eps_high: float) -> TokenLoss:
    """Returns the clipped surrogate loss with one ratio per response, the geometric mean.

    s = exp(mean over the response's tokens of logprobs - old_logprobs); each token's gradient is
    that of s A logprobs (the variant GSPO-token). A mean of log-ratios moves far less than one of
    them, hence the paper's clips of 3e-4 and 4e-4; each response has the same weight, as its
    tokens share a ratio. When: long responses, mixtures of experts.

    Source: GSPO (arXiv:2507.18071), sections 4.1 and 4.3.
    """
    log_ratio = given.log_ratio
    lengths = given.mask.sum(dim=-1, keepdim=True).clamp(min=1)
    sequence_log_ratio = (log_ratio.sum(dim=-1, keepdim=True) / lengths).detach()
    # Its value is the sequence's ratio, its gradient that of the token's own log-prob.
    ratio = _exp(sequence_log_ratio + log_ratio - log_ratio.detach())
    plain = -given.advantages * ratio
    clipped = -given.advantages * ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    return TokenLoss(plain.maximum(clipped), is_clipped=clipped > plain)


def cispo_policy_loss(
    given: GivenTokens, *, clip_eps_low: float, clip_eps_high: float
) -> TokenLoss:
    """Returns -A c logprobs per token, c being the clipped ratio as a constant.

    No token loses its gradient by being clipped; only its weight is bounded: to [0, 5] with the
    clips of 1 and 4 of ScaleRL (arXiv:2510.13786). When: stale rollouts, several updates.

    Source: MiniMax-M1 (arXiv:2506.13585), section 3.1.
    """
    log_ratio = given.log_ratio
    ratio = _exp(log_ratio.detach())
    weight = ratio.clamp(1 - clip_eps_low, 1 + clip_eps_high)
    per_token = -given.advantages * weight * given.logprobs.where(given.mask, 0.0)
    return TokenLoss(per_token, is_clipped=ratio != weight)


def dppo_policy_loss(given: GivenTokens, *, clip_eps_low: float, clip_eps_high: float) -> TokenLoss:
    """Returns -A min(r, 20) per token, whose gradient is that times the log-prob's.

    r = exp(logprobs - rollout_logprobs), a constant. A token teaches nothing if its PROBABILITY
    has moved too far in the advantage's direction: by more than `clip_eps_high` above the engine's
    if A > 0, by more than `clip_eps_low` below it if A < 0 (binary total variation). PPO's clip of
    the ratio stops rare tokens early and common ones late. When: stale rollouts, rare tokens.

    Source: DPPO (arXiv:2602.04879), equation 13.
    """
    log_ratio = (given.logprobs - given.rollout_logprobs).where(given.mask, 0.0)
    moved = given.logprobs.detach().exp() - given.rollout_logprobs.exp()
    too_far = (given.advantages > 0) & (moved > clip_eps_high)
    too_far |= (given.advantages < 0) & (moved < -clip_eps_low)
    weight = _exp(log_ratio.detach()).clamp(max=_MAX_RATIO)
    unity = (log_ratio - log_ratio.detach()).exp()  # its gradient is the log-prob's
    per_token = (-given.advantages * weight * unity).where(~too_far, 0.0)
    return TokenLoss(per_token, is_clipped=too_far)


def _exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()


def share_of_loss(
    given: GivenTokens,
    tokens: TokenLoss,
    importance_weights: Tensor | None,
    *,
    aggregation: Aggregation,
    denominators: Denominators,
) -> PolicyLoss:
    """Returns the aggregated loss of a micro-batch's tokens, with its metrics.

    `importance_weights`, see importance.py, are constants that multiply each token's loss.
    """
    per_token = tokens.per_token
    if importance_weights is not None:
        per_token = per_token * importance_weights
    clip_frac = masked_sum(tokens.is_clipped.to(per_token.dtype), given.mask)
    return PolicyLoss(
        loss=aggregate(per_token, given.mask, aggregation, denominators),
        clip_frac=clip_frac / denominators.num_tokens,
        approx_kl=-given.log_ratio.detach().sum() / denominators.num_tokens,
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
    import torch

    values, old_values, returns = (
        x.where(response_mask, 0.0) for x in (values, old_values, returns)
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


LOSSES: Final[dict[str, Loss]] = {
    "ppo": Loss(ppo_policy_loss, settings=("dual_clip",)),
    "gspo": Loss(
        gspo_policy_loss,
        clip_eps_low=3e-4,
        clip_eps_high=4e-4,
        largest_clip=0.02,
        aggregation="seq-mean-token-mean",
    ),
    "cispo": Loss(cispo_policy_loss, clip_eps_low=1.0, clip_eps_high=4.0),
    "dppo": Loss(dppo_policy_loss, ratio_to_engine=True),
}
"""By the name that `actor.policy_loss` chooses."""
