"""Log-probs and entropy of tokens from hidden states, without the logits of all tokens in memory.

Legend: N tokens, H hidden size, V vocabulary. The plain way keeps several [N, V] float32 tensors
for the backward pass (8 x 1,024 tokens of a 152k vocabulary: 4.64 GiB each); here logits exist for
one chunk of tokens at a time and are computed again in the backward pass.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

CHUNK_TOKENS = 1_024
"""Tokens whose logits exist at a time."""


def token_logprobs(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    compute_dtype: torch.dtype | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> Tensor:
    """Returns the log-probs of the targets, float32 [N].

    Args:
        hidden: float [N, H], the states that predict the targets; carries gradient.
        head_weight: float [V, H], the output embedding; carries gradient.
        targets: int64 [N], token ids.
        temperature: logits are divided by it.
        compute_dtype: of the matrix products, hidden's own by default; softmax is always float32.
        chunk_tokens: tokens whose logits exist at a time.
    """
    logprobs, _ = _apply(
        hidden, head_weight, targets, temperature, compute_dtype, chunk_tokens, with_entropy=False
    )
    return logprobs


def token_logprobs_and_entropy(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    compute_dtype: torch.dtype | None = None,
    chunk_tokens: int = CHUNK_TOKENS,
) -> tuple[Tensor, Tensor]:
    """Returns the log-probs of the targets and the entropies in nats, each float32 [N].

    Takes what `token_logprobs` takes; both results carry gradient.
    """
    return _apply(
        hidden, head_weight, targets, temperature, compute_dtype, chunk_tokens, with_entropy=True
    )


def _apply(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    temperature: float,
    compute_dtype: torch.dtype | None,
    chunk_tokens: int,
    *,
    with_entropy: bool,
) -> tuple[Tensor, Tensor]:
    dtype = hidden.dtype if compute_dtype is None else compute_dtype
    result = _ChunkedLogprobs.apply(  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        hidden.to(dtype), head_weight.to(dtype), targets, temperature, chunk_tokens, with_entropy
    )
    return cast("tuple[Tensor, Tensor]", result)


def _scaled_logits(hidden: Tensor, head_weight: Tensor, temperature: float) -> Tensor:
    """Returns a chunk's logits over the temperature, float32 [n, V], in a fresh buffer."""
    logits = torch.mm(hidden, head_weight.T).float()
    return logits if temperature == 1.0 else logits.div_(temperature)


class _ChunkedLogprobs(torch.autograd.Function):
    """Walks over the tokens in chunks; keeps two numbers per token and recomputes the logits.

    With z the scaled logits, p their softmax, y the target and E the entropy:
    d logprob / dz = onehot(y) - p, and d E / dz = -p (log p + E).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk_tokens: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        num_tokens = hidden.shape[0]
        logprobs, log_sums, entropies = (
            torch.zeros(num_tokens, dtype=torch.float32, device=hidden.device) for _ in range(3)
        )
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, num_tokens, chunk_tokens):
                part = slice(start, start + chunk_tokens)
                logits = _scaled_logits(hidden[part], head_weight, temperature)
                log_sum = torch.logsumexp(logits, dim=-1)
                chosen = logits.gather(-1, targets[part].unsqueeze(-1)).squeeze(-1)
                log_sums[part] = log_sum
                logprobs[part] = chosen - log_sum
                if with_entropy:
                    probs = torch.sub(logits, log_sum.unsqueeze(-1)).exp_()
                    entropies[part] = log_sum - torch.linalg.vecdot(probs, logits)
        ctx.save_for_backward(hidden, head_weight, targets, log_sums, entropies)
        ctx.temperature, ctx.chunk_tokens = temperature, chunk_tokens
        ctx.set_materialize_grads(False)
        if not with_entropy:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head_weight, targets, log_sums, entropies = ctx.saved_tensors
        logprob_grad, entropy_grad = grads
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        hidden_grad = torch.empty_like(hidden) if needs_hidden else None
        weight_grad = torch.zeros_like(head_weight, dtype=torch.float32) if needs_weight else None
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], ctx.chunk_tokens):
                part = slice(start, start + ctx.chunk_tokens)
                logits = _scaled_logits(hidden[part], head_weight, ctx.temperature)
                logits_grad = _logits_grad(
                    logits.sub_(log_sums[part].unsqueeze(-1)),
                    targets[part],
                    entropies[part],
                    None if logprob_grad is None else logprob_grad[part],
                    None if entropy_grad is None else entropy_grad[part],
                )
                logits_grad = logits_grad.div_(ctx.temperature).to(hidden.dtype)
                if hidden_grad is not None:
                    torch.mm(logits_grad, head_weight, out=hidden_grad[part])
                if weight_grad is not None:
                    _add_product(weight_grad, logits_grad, hidden[part])
        if weight_grad is not None:
            weight_grad = weight_grad.to(head_weight.dtype)
        return hidden_grad, weight_grad, None, None, None, None


def _add_product(total: Tensor, logits_grad: Tensor, hidden: Tensor) -> None:
    """Adds logits_grad^T hidden to the float32 total, in place."""
    if hidden.dtype == total.dtype:
        total.addmm_(logits_grad.T, hidden)
    else:
        total.add_(torch.mm(logits_grad.T, hidden))


def _logits_grad(
    all_logprobs: Tensor,
    targets: Tensor,
    entropies: Tensor,
    logprob_grad: Tensor | None,
    entropy_grad: Tensor | None,
) -> Tensor:
    """Returns the gradient of the scaled logits, float32 [n, V], given their log-softmax."""
    grad = all_logprobs.exp().neg_()
    if entropy_grad is None:
        assert logprob_grad is not None, "backward runs only if one result has a gradient"
        grad.mul_(logprob_grad.unsqueeze(-1))
    else:
        factor = all_logprobs.add_(entropies.unsqueeze(-1)).mul_(entropy_grad.unsqueeze(-1))
        if logprob_grad is not None:
            factor.add_(logprob_grad.unsqueeze(-1))
        grad.mul_(factor)
    if logprob_grad is not None:
        grad.scatter_add_(-1, targets.unsqueeze(-1), logprob_grad.unsqueeze(-1))
    return grad
