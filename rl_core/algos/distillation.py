"""Learning from a teacher: what its log-probs say of the policy's own tokens.

Legend: B responses, T response tokens (right-padded). Tensors are float [B, T] but for masks, bool
[B, T]; nothing outside a mask matters. No function carries gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def teacher_advantages(
    logprobs: Tensor, teacher_logprobs: Tensor, mask: Tensor, *, coef: float, bound: float
) -> Tensor:
    """Returns coef clip(log q - log p, -bound, bound) per token, p the policy and q the teacher.

    Its mean over the policy's own tokens is minus the reverse KL, in nats: each token is rewarded
    as far as the teacher finds it likelier. It is added to the estimator's advantages after their
    normalisation, neither whitened nor discounted, so every sampled token teaches, whatever its
    group's rewards. The bound keeps one token that the teacher would never write from drowning a
    batch.

    Source: GKD (arXiv:2306.13649), section 3; Qwen3 (arXiv:2505.09388), section 4.5.
    """
    gap = (teacher_logprobs - logprobs).clamp(-bound, bound)
    return coef * gap.detach().where(mask, 0.0)
