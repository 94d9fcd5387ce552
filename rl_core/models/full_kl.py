"""The reverse KL to a teacher over the whole vocabulary, without the logits of either in memory.

Legend: N tokens, H hidden size of the policy, K of the teacher, V vocabulary. As in logprobs.py,
logits exist for one block of the vocabulary at a time, and again in the backward pass.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor

from rl_core.models.logprobs import Head, capped
from rl_core.models.matmul import product, product_in_float32, product_operand

_BLOCK_LOGITS = 2**20  # two models': half of those in logprobs.py
_CARD_BLOCK_LOGITS = 2**24
_SMALLEST_BLOCK = 256


def full_reverse_kl(
    hidden: Tensor,
    head: Head,
    teacher: tuple[Tensor, Head],
    *,
    temperature: float,
    compute_dtype: torch.dtype,
    block_size: int | None = None,
) -> Tensor:
    """Returns sum_v p_v (log p_v - log q_v) at each token, nats, float32 [N].

    Of a longer embedding, whose last rows no token has, the rows that both have are used.

    Args:
        hidden: float [N, H], the states that predict the tokens; carries gradient.
        head: the policy's, see logprobs.py.
        teacher: float [N, K], the teacher's states, and its head; constants.
        temperature: all logits are divided by it.
        compute_dtype: of the matrix products; softmax is always float32.
        block_size: vocabulary entries in one block.
    """
    most = _CARD_BLOCK_LOGITS if hidden.is_cuda else _BLOCK_LOGITS
    block_size = block_size or max(most // max(len(hidden), 1), _SMALLEST_BLOCK)
    teacher_hidden, teacher_head = teacher
    common = min(len(head.weight), len(teacher_head.weight))
    result = _BlockwiseKl.apply(  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        hidden.to(compute_dtype),
        head.weight[:common],
        teacher_hidden.to(compute_dtype),
        teacher_head.weight[:common],
        (*head.tempered(temperature), *teacher_head.tempered(temperature)),
        block_size,
    )
    return cast("Tensor", result)


class _BlockwiseKl(torch.autograd.Function):
    """Saves three numbers per token, and computes all logits again in the backward pass.

    With z and t the logits of policy and teacher, and Z the sums of their exponentials:
    KL = sum_v p_v (z_v - t_v) - log Z_p + log Z_q, d KL / d z_v = p_v (log p_v - log q_v - KL).

    Source: Milakov and Gimelshein 2018 (arXiv:1805.02867), algorithm 3, for the running softmax.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        hidden, head, teacher_hidden, teacher_head, tempered, block_size = inputs
        # Of all blocks so far: total = sum exp(z - highest), moment = sum exp(z - highest) (z - t).
        total, moment, teacher_total = (hidden.new_zeros(len(hidden)).float() for _ in range(3))
        highest = torch.full_like(total, torch.finfo(torch.float32).min)
        teacher_highest = highest.clone()
        blocks = _blocks(hidden, head, teacher_hidden, teacher_head, tempered, block_size)
        for _, _, logits, teacher_logits in blocks:
            new_highest = torch.maximum(highest, logits.amax(dim=-1))
            shrink = (highest - new_highest).exp()
            exps = (logits - new_highest.unsqueeze(-1)).exp_()
            total = total * shrink + exps.sum(dim=-1)
            moment = moment * shrink + exps.mul_(logits.sub_(teacher_logits)).sum(dim=-1)
            highest = new_highest
            new_highest = torch.maximum(teacher_highest, teacher_logits.amax(dim=-1))
            exps = teacher_logits.sub_(new_highest.unsqueeze(-1)).exp_()
            teacher_total = teacher_total * (teacher_highest - new_highest).exp() + exps.sum(dim=-1)
            teacher_highest = new_highest
        log_sums = highest + total.log()
        teacher_log_sums = teacher_highest + teacher_total.log()
        kl: Tensor = moment / total - log_sums + teacher_log_sums
        ctx.save_for_backward(*inputs[:4], log_sums, teacher_log_sums, kl)
        ctx.tempered = tempered
        ctx.block_size = block_size
        return kl

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden, head, taught, taught_head, log_sums, teacher_log_sums, kl = ctx.saved_tensors
        states = product_operand(hidden)
        hidden_grad = torch.zeros_like(hidden, dtype=torch.float32)
        weight_grad = torch.empty_like(head) if ctx.needs_input_grad[1] else None
        temperature, cap, *_ = ctx.tempered
        factor = (grads[0] / temperature).unsqueeze(-1)
        blocks = _blocks(hidden, head, taught, taught_head, ctx.tempered, ctx.block_size)
        for first, weight, logits, teacher_logits in blocks:
            slope = factor if cap is None else factor * (1.0 - (logits / cap).square_())
            logprobs = logits.sub_(log_sums.unsqueeze(-1))
            gap = teacher_logits.neg_().add_((teacher_log_sums - kl).unsqueeze(-1)).add_(logprobs)
            grad = logprobs.exp_().mul_(gap).mul_(slope).to(states.dtype)
            hidden_grad.add_(product(grad, weight.T))
            if weight_grad is not None:
                product(grad.T, states.T, out=weight_grad[first : first + len(weight)])
        return hidden_grad.to(hidden.dtype), weight_grad, None, None, None, None


def _blocks(
    hidden: Tensor,
    head: Tensor,
    teacher_hidden: Tensor,
    teacher_head: Tensor,
    tempered: tuple[float, float | None, float, float | None],
    block_size: int,
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Yields (first entry, weights [v, H], logits and the teacher's, float32 [N, v]) in blocks."""
    temperature, cap, teacher_temperature, teacher_cap = tempered
    states = product_operand(hidden)
    teacher_states = product_operand(teacher_hidden)
    for first in range(0, len(head), block_size):
        some = slice(first, first + block_size)
        with torch.autocast(hidden.device.type, enabled=False):
            weight = product_operand(head[some].to(hidden.dtype))
            teacher_weight = product_operand(teacher_head[some].to(hidden.dtype))
            logits = product_in_float32(states, weight).div_(temperature)
            taught = product_in_float32(teacher_states, teacher_weight).div_(teacher_temperature)
        yield first, weight, capped(logits, cap), capped(taught, teacher_cap)
