"""Distance to the reference policy: per-token KL estimates and the coefficient's controllers.

Legend: B responses, T response tokens. All log-probs are natural logs at the sampled tokens.
"""

from typing import Literal

import torch
from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]

_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0
_MAX_CONTROLLER_ERROR = 0.2


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, estimator: KlEstimator) -> Tensor:
    """Returns a per-token estimate of KL(policy || reference), shaped as the inputs.

    With d = logprobs - ref_logprobs: k1 = d (unbiased, may be negative), k2 = d^2 / 2, k3 =
    exp(-d) - 1 + d (unbiased, never negative). k3 clamps d to [-20, 20] and its value to [-10, 10],
    as verl does: one odd token must not drown a batch.

    As a loss only k2 serves. Its gradient d is, over the policy's samples, that of KL(policy ||
    reference). k3's is 1 - exp(-d), that of KL(reference || policy): after a collapse to d = 8 it
    pulls with 1 in place of 8, and from d = 11 on, clamped, not at all. k1's is 1: 0 on average.

    `logprobs` carries gradient, `ref_logprobs` is a constant.

    Source: Schulman 2020, "Approximating KL Divergence".
    """
    difference = logprobs - ref_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    difference = difference.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    return (torch.expm1(-difference) + difference).clamp(-_MAX_K3, _MAX_K3)


def fixed_kl_coef(
    kl_coef: float, kl: float, *, target: float, horizon: int, num_rollouts: int
) -> float:
    """Returns the coefficient unchanged; takes the same arguments as `adaptive_kl_coef`."""
    return kl_coef


def adaptive_kl_coef(
    kl_coef: float, kl: float, *, target: float, horizon: int, num_rollouts: int
) -> float:
    """Returns the next step's KL coefficient: larger after too much KL, smaller after too little.

    coef (1 + clip(kl / target - 1, -0.2, 0.2) num_rollouts / horizon).

    `kl` (of this step) and `target` are per response, in nats. Over `horizon` rollouts the
    coefficient changes by a fifth at most.

    Source: Ziegler et al. 2019 (arXiv:1909.08593), section 2.2.
    """
    error = min(max(kl / target - 1.0, -_MAX_CONTROLLER_ERROR), _MAX_CONTROLLER_ERROR)
    return kl_coef * (1.0 + error * num_rollouts / horizon)
