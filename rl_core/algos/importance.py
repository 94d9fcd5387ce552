"""Weights of tokens that another policy has sampled: the engine's, or one of some steps ago.

Legend: B responses, T response tokens (right-padded). Tensors are float [B, T] but for masks, bool
[B, T]; nothing outside a mask matters. Weights are constants that multiply each token's loss, 0
outside the mask; tokens of weight 0 still count in the loss's denominators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence", "geometric"]
Outside = Literal["clip", "drop"]
TOKEN_CAP = 2.0
_MAX_LOG_RATIO = 20.0


def importance_weights(
    log_ratios: Tensor,
    response_mask: Tensor,
    *,
    level: Level = "token",
    low: float | None = None,
    cap: float,
    outside: Outside = "clip",
) -> Tensor:
    """Returns the probability of what was sampled, for the learner over the engine, within bounds.

    With d = `log_ratios`, learner less engine: `token` exp(d), for each token; `sequence`
    exp(sum d) for all tokens of a response, which is unbiased and varies most; `geometric` keeps or
    drops a response by exp(mean d), and its tokens weigh exp(d), at most 2. A ratio outside
    [low, cap] is set to the bound (`clip`), or its tokens teach nothing (`drop`).

    Source: Ionides 2008; Yao et al. 2025, "Your efficient RL framework secretly brings you
        off-policy RL training"; IcePop (Ring-1T, arXiv:2510.18855) for `drop` at tokens.
    """
    difference = log_ratios.detach().where(response_mask, 0.0)
    decides = difference
    if level != "token":
        decides = difference.sum(dim=-1, keepdim=True)
    if level == "geometric":
        decides = decides / response_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    ratio = decides.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO).exp()
    if outside == "clip":
        weights = ratio.clamp(min=low, max=cap)
    else:
        inside = (ratio <= cap) & (ratio >= (0.0 if low is None else low))
        weights = ratio
        if level == "geometric":
            weights = difference.clamp(max=_MAX_LOG_RATIO).exp().clamp(max=TOKEN_CAP)
        weights = weights.where(inside, 0.0)
    return weights.expand(response_mask.shape).where(response_mask, 0.0)


def off_policy_kept(
    logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    *,
    delta: float,
) -> Tensor:
    """Returns 0 at tokens with a negative advantage of responses that the policy has left, else 1.

    It has left a response if the mean of rollout_logprobs - logprobs is above `delta`, in nats:
    what it would no longer write need not be pushed down further, and doing so unsettles it.

    Source: DeepSeek-V3.2 (arXiv:2512.02556), equation 9.
    """
    difference = (rollout_logprobs - logprobs).detach().where(response_mask, 0.0)
    lengths = response_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    has_left = difference.sum(dim=-1, keepdim=True) / lengths > delta
    return (~(has_left & (advantages < 0)) & response_mask).to(difference.dtype)
