"""Log-probs and entropy of tokens from hidden states, without the logits in memory.

Legend: N tokens, H hidden size, V vocabulary. The plain way keeps several [N, V] float32 tensors
for the backward pass (8 x 1,024 tokens of a 152k vocabulary: 4.64 GiB each). Here logits exist for
one block of the vocabulary at a time, with a running softmax, and unless they are few they are
computed again in the backward pass. Blocks of the vocabulary, not of the N tokens: each row of the
head's gradient is then written once; blocks of tokens would add to all of it again and again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self, cast

import torch
import transformers
from torch import Tensor

from rl_core.models.matmul import product, product_in_float32, product_operand

_BLOCK_LOGITS = 2**21
_CARD_BLOCK_LOGITS = 2**25
"""Logits in one block, on a CPU and a card: 8 MiB of float32 fit a CPU's cache; a card needs more.

Measured on an H200, 8,192 tokens of Qwen2.5-0.5B in bfloat16, forward and backward: 537 ms with
blocks of 8 MiB, 63 ms with 128 MiB, 55 ms with 1 GiB. Each block costs ten launches of kernels.
"""
_KEPT_LOGITS = 2**25
"""Up to so many logits (128 MiB) are kept for the backward pass, which saves a product.

Measured on a CPU, a step of SmolLM2-135M in micro-batches of 512 response tokens: 0.9 of 20 s less.
"""
_SMALLEST_BLOCK = 256
"""The smallest block of the vocabulary, however many tokens N: thinner products are slow."""


class Head(NamedTuple):
    """What makes logits of states: scale * weight @ state, soft-capped as cap * tanh(x / cap)."""

    weight: Tensor
    """The output embedding, float [V, H]; carries gradient."""
    scale: float = 1.0
    cap: float | None = None

    @classmethod
    def of(cls, model: transformers.PreTrainedModel) -> Self:
        """Returns a causal LM's: Cohere's and Granite's scale, Gemma's cap."""
        config = model.config.get_text_config()
        scale = getattr(config, "logit_scale", None) or 1.0
        scaling = getattr(config, "logits_scaling", None) or 1.0
        return cls(
            model.get_output_embeddings().weight,
            scale * scaling if config.model_type == "hyperclovax" else scale / scaling,
            getattr(config, "final_logit_softcapping", None),
        )

    def tempered(self, temperature: float) -> tuple[float, float | None]:
        """Returns by what the products are divided, and the cap after it, at a temperature."""
        return temperature / self.scale, None if self.cap is None else self.cap / temperature


def capped(logits: Tensor, cap: float | None) -> Tensor:
    """Returns soft-capped logits in their memory, or the logits if there is no cap."""
    return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def token_logprobs(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    temperature: float,
    compute_dtype: torch.dtype | None = None,
    block_size: int | None = None,
) -> Tensor:
    """Returns the log-probs of the targets, float32 [N].

    Args:
        hidden: float [N, H], the states that predict the targets; carries gradient.
        head: the output embedding, and how logits are scaled and capped.
        targets: int64 [N].
        temperature: logits are divided by it.
        compute_dtype: of the matrix products, hidden's own by default; softmax is always float32.
        block_size: vocabulary entries in one block; by default as many as make 8 MiB of logits,
            or 128 MiB on a card.
    """
    logprobs, _ = _apply(
        hidden.to(compute_dtype or hidden.dtype),
        head,
        targets,
        temperature,
        block_size,
        with_entropy=False,
    )
    return logprobs


def token_logprobs_and_entropy(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    *,
    temperature: float,
    compute_dtype: torch.dtype | None = None,
    block_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns log-probs of the targets and entropies in nats, float32 [N], both with gradient."""
    return _apply(
        hidden.to(compute_dtype or hidden.dtype),
        head,
        targets,
        temperature,
        block_size,
        with_entropy=True,
    )


def _apply(
    hidden: Tensor,
    head: Head,
    targets: Tensor,
    temperature: float,
    block_size: int | None,
    *,
    with_entropy: bool,
) -> tuple[Tensor, Tensor]:
    most = _CARD_BLOCK_LOGITS if hidden.is_cuda else _BLOCK_LOGITS
    block_size = block_size or max(most // max(len(hidden), 1), _SMALLEST_BLOCK)
    result = _BlockwiseLogprobs.apply(  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        hidden, head.weight, targets, head.tempered(temperature), block_size, with_entropy
    )
    return cast("tuple[Tensor, Tensor]", result)


def _blocks(
    hidden: Tensor,
    head_weight: Tensor,
    tempered: tuple[float, float | None],
    block_size: int,
    kept: Sequence[Tensor] = (),
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yields (first vocabulary entry, weights [v, H], float32 logits [N, v]) block by block.

    The weights are a `product_operand` of hidden's dtype; logits that were not kept may be
    overwritten. `Head.tempered` changes float32 logits: bfloat16 states would be rounded again.
    """
    temperature, cap = tempered
    states = product_operand(hidden)
    for number, first in enumerate(range(0, len(head_weight), block_size)):
        weight = product_operand(head_weight[first : first + block_size].to(hidden.dtype))
        if kept:
            yield first, weight, kept[number]
            continue
        logits = product_in_float32(states, weight)
        yield first, weight, capped(logits if temperature == 1.0 else logits.div_(temperature), cap)


def _position(targets: Tensor, first: int, block_size: int) -> tuple[Tensor, Tensor]:
    """Returns the targets' columns in a block, int64 [N, 1], and which of them are in it, [N]."""
    columns = targets - first
    inside = (columns >= 0) & (columns < block_size)
    return columns.clamp(0, block_size - 1).unsqueeze(-1), inside


class _BlockwiseLogprobs(torch.autograd.Function):
    """Saves two numbers per token, and the logits if they are few; else these are recomputed.

    With z the logits, p their softmax, y the target and E the entropy:
    d logprob / dz = onehot(y) - p, and d E / dz = -p (log p + E). With a cap c, z = c tanh(x / c)
    and dz / dx = 1 - (z / c)^2.

    Source: Milakov and Gimelshein 2018 (arXiv:1805.02867), algorithm 3, for the running softmax.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        hidden, head_weight, targets, tempered, block_size, with_entropy = inputs
        chosen, total, moment = (
            torch.zeros(len(hidden), dtype=torch.float32, device=hidden.device) for _ in range(3)
        )
        # Of all blocks so far, with d = logit - highest: total = sum exp(d), moment = sum d exp(d).
        highest = torch.full_like(total, torch.finfo(torch.float32).min)
        are_few = len(hidden) * len(head_weight) <= _KEPT_LOGITS
        keeps = are_few and any(ctx.needs_input_grad[:2])
        kept: list[Tensor] = []
        subtracted: list[Tensor] = []
        with torch.autocast(hidden.device.type, enabled=False):
            for first, weight, logits in _blocks(hidden, head_weight, tempered, block_size):
                columns, inside = _position(targets, first, len(weight))
                chosen = torch.where(inside, logits.gather(-1, columns).squeeze(-1), chosen)
                new_highest = torch.maximum(highest, logits.amax(dim=-1))
                shift = highest - new_highest
                moment = (moment + shift * total) * shift.exp()
                total = total * shift.exp()
                highest = new_highest
                logits.sub_(highest.unsqueeze(-1))
                if keeps:
                    kept.append(logits)
                    subtracted.append(highest)
                exps = logits.exp() if keeps or with_entropy else logits.exp_()
                total += exps.sum(dim=-1)
                if with_entropy:
                    moment += exps.mul_(logits).sum(dim=-1)
        log_total = total.log()
        log_sums = highest + log_total
        entropies = log_total - moment / total
        rests = [highest - before + log_total for before in subtracted]
        ctx.save_for_backward(hidden, head_weight, targets, log_sums, entropies, *kept, *rests)
        ctx.tempered = tempered
        ctx.block_size = block_size
        ctx.num_kept = len(kept)
        ctx.set_materialize_grads(False)
        if not with_entropy:
            ctx.mark_non_differentiable(entropies)
        return chosen - log_sums, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, head_weight, targets, log_sums, entropies, *kept_and_rests = ctx.saved_tensors
        kept = kept_and_rests[: ctx.num_kept]
        rests = kept_and_rests[ctx.num_kept :]
        # The gradient of the logits is linear in these, and they are few.
        temperature, cap = ctx.tempered
        logprob_grad, entropy_grad = (None if x is None else x / temperature for x in grads)
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        states = product_operand(hidden)
        hidden_grad = torch.zeros_like(hidden, dtype=torch.float32) if needs_hidden else None
        weight_grad = torch.empty_like(head_weight) if needs_weight else None
        with torch.autocast(hidden.device.type, enabled=False):
            blocks = _blocks(hidden, head_weight, ctx.tempered, ctx.block_size, kept)
            for number, (first, weight, logits) in enumerate(blocks):
                sums = log_sums.unsqueeze(-1)
                logprobs = logits - rests[number].unsqueeze(-1) if kept else logits.sub_(sums)
                slope = None if cap is None else 1.0 - ((logprobs + sums) / cap).square_()
                grad = _logits_grad(
                    logprobs,
                    _position(targets, first, len(weight)),
                    entropies,
                    logprob_grad,
                    entropy_grad,
                )
                grad = (grad if slope is None else grad.mul_(slope)).to(states.dtype)
                if hidden_grad is not None:
                    hidden_grad.add_(product(grad, weight.T))
                if weight_grad is not None:
                    product(grad.T, states.T, out=weight_grad[first : first + len(weight)])
        if hidden_grad is not None:
            hidden_grad = hidden_grad.to(hidden.dtype)
        return hidden_grad, weight_grad, None, None, None, None


def _logits_grad(
    all_logprobs: Tensor,
    position: tuple[Tensor, Tensor],
    entropies: Tensor,
    logprob_grad: Tensor | None,
    entropy_grad: Tensor | None,
) -> Tensor:
    """Returns the gradient of a block's logits, float32 [N, v], in the memory of its log-probs."""
    if entropy_grad is None:
        assert logprob_grad is not None, "backward runs only if one result has a gradient"
        grad = all_logprobs.exp_().mul_(-logprob_grad.unsqueeze(-1))
    else:
        probs = all_logprobs.exp()
        grad = all_logprobs.add_(entropies.unsqueeze(-1)).mul_(-entropy_grad.unsqueeze(-1))
        if logprob_grad is not None:
            grad.sub_(logprob_grad.unsqueeze(-1))
        grad.mul_(probs)
    if logprob_grad is not None:
        columns, inside = position
        grad.scatter_add_(-1, columns, torch.where(inside, logprob_grad, 0.0).unsqueeze(-1))
    return grad
