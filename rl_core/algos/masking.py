"""Means, whitening and loss aggregation over the real tokens of a right-padded batch.

Legend: B responses, T response tokens; tensors are [B, T]. Masks are bool, True at the tokens of a
response; what a tensor holds elsewhere (NaN included) never matters, and results are 0 there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal[
    "token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"
]


@dataclass(frozen=True)
class Denominators:
    """What a loss is divided by: counted over a mini-batch, used by each micro-batch of it."""

    num_tokens: int
    """Tokens under the mask."""
    num_sequences: int
    """Responses with at least one token under the mask."""
    max_response_length: int | None = None
    """Tokens that a response may have, for `seq-mean-token-sum-norm`: the same in every step."""


def count_denominators(mask: Tensor, max_response_length: int | None = None) -> Denominators:
    """Returns the denominators of a mini-batch; ValueError for an empty mask: there is no mean."""
    num_tokens = int(mask.sum())
    if num_tokens == 0:
        raise ValueError("the mini-batch holds no response token: a loss over it is not defined")
    return Denominators(num_tokens, int(mask.any(dim=-1).sum()), max_response_length)


def masked_sum(values: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Returns the sum of the values under the mask; gradient flows only to them."""
    kept = values.where(mask, 0.0)
    return kept.sum() if dim is None else kept.sum(dim=dim)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean of the values under the mask, a scalar; 0 for an empty mask."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def whiten(values: Tensor, mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Returns the values shifted and scaled to mean 0 and variance 1 over the mask, float [B, T].

    Convention: Bessel-corrected variance, eps under the root (verl, TRL). A single value becomes 0.
    """
    centred = _centred(values, mask)
    return centred * _inverse_std(centred, mask, eps)


def divide_by_std(values: Tensor, mask: Tensor, *, eps: float = 1e-8) -> Tensor:
    """Returns the values scaled to variance 1 over the mask, as `whiten` does, but not shifted."""
    return values.where(mask, 0.0) * _inverse_std(_centred(values, mask), mask, eps)


def _centred(values: Tensor, mask: Tensor) -> Tensor:
    return (values - masked_mean(values, mask)).where(mask, 0.0)


def _inverse_std(centred: Tensor, mask: Tensor, eps: float) -> Tensor:
    variance = centred.square().sum() / (mask.sum() - 1).clamp(min=1)
    return (variance + eps).rsqrt()


def aggregate(
    per_token: Tensor, mask: Tensor, aggregation: Aggregation, denominators: Denominators
) -> Tensor:
    """Returns this micro-batch's share of a loss over the whole mini-batch, a scalar.

    The shares of a mini-batch's micro-batches add up to its loss, however it was split, because
    the denominators are the mini-batch's. `per_token` carries gradient.

    `token-mean` weighs tokens alike (DAPO); `seq-mean-token-sum` sums a response's tokens and
    averages over responses; `seq-mean-token-sum-norm` divides that by the tokens that a response
    may have (Dr.GRPO); `seq-mean-token-mean` averages within a response, then over responses
    (GRPO).
    """
    if aggregation == "token-mean":
        return masked_sum(per_token, mask) / denominators.num_tokens
    per_sequence = masked_sum(per_token, mask, dim=-1)
    if aggregation == "seq-mean-token-mean":
        per_sequence = per_sequence / mask.sum(dim=-1).clamp(min=1)
    elif aggregation == "seq-mean-token-sum-norm":
        assert denominators.max_response_length is not None, "the run's limit is in `denominators`"
        per_sequence = per_sequence / denominators.max_response_length
    return per_sequence.sum() / denominators.num_sequences
