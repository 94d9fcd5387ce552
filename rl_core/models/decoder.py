"""The decoder of a Qwen2 or Llama in float32 on a CPU: few products, no padding, each prompt once.

transformers' decoder computes padded rows by some forty small operations per layer. Here the real
tokens of a micro-batch stand in one matrix, queries, keys and values are one product, gate and up
another, and only attention sees rows. A row's segment begins with the last token of its prompt,
whose state predicts the first of the response; the tokens before belong to the prompt, are computed
once per group, and go no further than the last layer's keys and values.

Legend: B rows, G prompts, P longest prompt less its last token, T longest response, N tokens
computed, of which M are prompts', H hidden size, Q query heads, K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_core.batch import TrainBatch
from rl_core.models.fast_linear import FastLinear, linear
from rl_core.models.select_rows import select_rows
from rl_core.models.shared_prefix import can_share_prompts

_MODEL_TYPES = ("qwen2", "llama")


def supports(backbone: Any) -> bool:
    """Returns whether this decoder computes, now, what a backbone would.

    It does for a Qwen2 or Llama whose layers are as they were loaded, in float32 on a CPU: not with
    adapters, under autocast, with gradient checkpointing, or with a window of positions.
    """
    config = backbone.config
    if config.model_type not in _MODEL_TYPES or config.hidden_act != "silu":
        return False
    if not can_share_prompts(backbone) or backbone.is_gradient_checkpointing:
        return False
    if torch.is_autocast_enabled("cpu"):
        return False
    is_plain = all(type(m) in (nn.Linear, FastLinear) for m in _linear_layers(backbone.layers[0]))
    weights = {(p.dtype, p.device.type) for p in backbone.parameters()}
    return is_plain and weights == {(torch.float32, "cpu")}


def _linear_layers(layer: Any) -> list[nn.Module]:
    attention, mlp = layer.self_attn, layer.mlp
    return [
        *(attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj),
        *(mlp.gate_proj, mlp.up_proj, mlp.down_proj),
    ]


@dataclass(frozen=True)
class FusedLinear:
    """Linear layers of one input as one; by autograd its gradients are theirs."""

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *layers: Any) -> FusedLinear:
        """Returns the layers' results side by side."""
        if len(layers) == 1:
            return cls(layers[0].weight, layers[0].bias)
        has_bias = layers[0].bias is not None
        bias = torch.cat([layer.bias for layer in layers]) if has_bias else None
        return cls(torch.cat([layer.weight for layer in layers]), bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns [N, out] of [N, in]."""
        return linear(x, self.weight, self.bias)

    def after(self, first: int) -> FusedLinear:
        """Returns what gives the results from the given one on."""
        return FusedLinear(self.weight[first:], None if self.bias is None else self.bias[first:])


@dataclass(frozen=True)
class FusedLayer:
    """A layer of the decoder, but for its attention."""

    input_norm: Tensor
    qkv: FusedLinear
    out: FusedLinear
    mlp_norm: Tensor
    gate_up: FusedLinear
    down: FusedLinear
    eps: float

    @classmethod
    def of(cls, layer: Any) -> FusedLayer:
        """Returns what a layer of transformers computes, as its weights are now."""
        attention, mlp = layer.self_attn, layer.mlp
        return cls(
            input_norm=layer.input_layernorm.weight,
            qkv=FusedLinear.of(attention.q_proj, attention.k_proj, attention.v_proj),
            out=FusedLinear.of(attention.o_proj),
            mlp_norm=layer.post_attention_layernorm.weight,
            gate_up=FusedLinear.of(mlp.gate_proj, mlp.up_proj),
            down=FusedLinear.of(mlp.down_proj),
            eps=layer.input_layernorm.variance_epsilon,
        )

    def normed(self, x: Tensor) -> Tensor:
        """Returns what queries, keys and values are made of, [N, H]."""
        return rms_norm(x, self.input_norm, self.eps)

    def finish(self, x: Tensor, read: Tensor) -> Tensor:
        """Returns the layer's result, [N, H].

        Args:
            x: what it was given, [N, H].
            read: what attention read, [N, Q * D].
        """
        x = x + self.out(read)
        gate, up = self.gate_up(rms_norm(x, self.mlp_norm, self.eps)).chunk(2, dim=-1)
        inner = functional.silu(gate) * up
        return x + self.down(inner)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Returns x / sqrt(mean(x^2) + eps) times the weight, [N, H]."""
    return cast("Tensor", _RmsNorm.apply(x, weight, eps))  # type: ignore[no-untyped-call]  # torch leaves apply untyped


class _RmsNorm(torch.autograd.Function):
    """torch's own, without what that keeps of each of its operations.

    With n = x / rms: d loss / dx = (g w - n mean(g w n)) / rms, for g = d loss / d result.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse_rms = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse_rms)
        return (x * inverse_rms).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inverse_rms = ctx.saved_tensors
        normed = x * inverse_rms
        weight_grad = (grads[0] * normed).sum(dim=0) if ctx.needs_input_grad[1] else None
        grad = grads[0] * weight
        shares = (grad * normed).sum(dim=-1, keepdim=True).div_(-x.shape[-1])
        return grad.addcmul_(normed, shares).mul_(inverse_rms), weight_grad, None


class Rotation:
    """Rotary positions of N tokens.

    Args:
        backbone: whose positions they are.
        positions: int64 [N].
    """

    def __init__(self, backbone: Any, positions: Tensor) -> None:
        cos, sin = backbone.rotary_emb(torch.empty(0), positions.unsqueeze(0))
        half = cos.shape[-1] // 2  # the other half is the same
        self._cos, self._sin = cos[0, :, None, :half], sin[0, :, None, :half]

    def __call__(self, projected: Tensor, num_heads: int) -> Tensor:
        """Returns [N, heads * D] with its first heads rotated, in the memory of what was given."""
        return cast(
            "Tensor",
            _Rotate.apply(projected, num_heads, self._cos, self._sin),  # type: ignore[no-untyped-call]  # torch leaves apply untyped
        )


class _Rotate(torch.autograd.Function):
    """Turns each pair (x_i, x_{i + D / 2}) by its angle; backwards, the gradient by minus that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, num_heads: int, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.num_heads = num_heads
        ctx.mark_dirty(x)
        return _turned(x, num_heads, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return _turned(grads[0].clone(), ctx.num_heads, cos, -sin), None, None, None


def _turned(x: Tensor, num_heads: int, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    heads = x[:, : num_heads * 2 * half].view(len(x), num_heads, 2, half)
    first, second = heads[:, :, 0], heads[:, :, 1]
    old = first.clone()
    first.mul_(cos).addcmul_(second, sin, value=-1.0)
    second.mul_(cos).addcmul_(old, sin)
    return x


@dataclass(frozen=True)
class Segments:
    """Tokens that stand one after another in the matrix, and in padded rows for attention."""

    count: int
    length: int
    """Of the longest."""
    slots: Tensor
    """Where in the flattened [count * length] each token stands, int64."""

    def heads(self, projected: Tensor, num_heads: Sequence[int]) -> Sequence[Tensor]:
        """Returns [tokens, heads * D] as [count, heads, length, D], 0 where there is no token.

        Args:
            projected: queries, keys and values.
            num_heads: of each of these.
        """
        if len(self.slots) < self.count * self.length:
            projected = _spread(projected, self.slots, self.count * self.length)
        by_head = projected.view(self.count, self.length, sum(num_heads), -1).transpose(1, 2)
        return by_head.split_with_sizes(list(num_heads), dim=1)

    def tokens(self, read: Tensor) -> Tensor:
        """Returns [count, heads, length, D] as [tokens, heads * D]."""
        flat = read.transpose(1, 2).reshape(self.count * self.length, -1)
        return flat if len(self.slots) == len(flat) else select_rows(flat, self.slots)


def _spread(x: Tensor, slots: Tensor, num_rows: int) -> Tensor:
    return cast("Tensor", _Spread.apply(x, slots, num_rows))  # type: ignore[no-untyped-call]  # torch leaves apply untyped


class _Spread(torch.autograd.Function):
    """Rows among rows of zeros: the inverse of `select_rows`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slots: Tensor, num_rows: int) -> Tensor:
        ctx.save_for_backward(slots)
        return x.new_zeros(num_rows, x.shape[1]).index_copy_(0, slots, x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slots,) = ctx.saved_tensors
        return grads[0].index_select(0, slots), None, None


@dataclass(frozen=True)
class _Tokens:
    """The tokens of a micro-batch that are computed: its prompts', then its rows'."""

    ids: Tensor
    """int64 [N]."""
    positions: Tensor
    """int64 [N]."""
    prompts: Segments
    rows: Segments
    prompt_of_row: Tensor
    """int64 [B]."""
    mask: Tensor
    """What a row's tokens see of its prompt's and of their own, float32 [B, 1, T, P + T]."""

    @classmethod
    def of(cls, batch: TrainBatch) -> _Tokens:
        """Returns the tokens whose states or keys the log-probs of a batch need."""
        prompt_rows, prompt_of_row = batch.prompts()
        prompt_lengths = batch.prompt_lengths - 1
        columns = torch.arange(max(int(prompt_lengths.max()), 1))
        steps = torch.arange(batch.rollout_logprobs.shape[1])
        in_prompt = columns < prompt_lengths.unsqueeze(-1)
        places = prompt_lengths.unsqueeze(-1) + steps
        in_row = batch.response_mask
        within = places.clamp(max=batch.input_ids.shape[1] - 1)
        of_prompts = in_prompt[prompt_rows]
        is_seen = torch.cat(
            [
                in_prompt.unsqueeze(1).expand(-1, len(steps), -1),
                (steps <= steps.unsqueeze(-1)).expand(len(batch), -1, -1),
            ],
            dim=2,
        )
        return cls(
            ids=torch.cat(
                [
                    batch.input_ids[prompt_rows, : len(columns)][of_prompts],
                    batch.input_ids.gather(1, within)[in_row],
                ]
            ),
            positions=torch.cat([columns.expand_as(of_prompts)[of_prompts], places[in_row]]),
            prompts=segments(of_prompts),
            rows=segments(in_row),
            prompt_of_row=prompt_of_row,
            mask=torch.where(is_seen, 0.0, -torch.inf).unsqueeze(1),
        )


def segments(mask: Tensor) -> Segments:
    """Returns where the tokens stand that a mask, bool [count, length], says are there."""
    return Segments(mask.shape[0], mask.shape[1], mask.flatten().nonzero().squeeze(-1))


def heads_of(backbone: Any) -> list[int]:
    """Returns how many heads queries, keys and values have."""
    config = backbone.config
    return [config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads]


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Returns what queries read, [rows, Q, length, D].

    Args:
        q: [rows, Q, length, D].
        keys: [rows, K, length, D].
        values: of the same shape.
        mask: added to the scores; by default each token sees itself and those before it.
    """
    return functional.scaled_dot_product_attention(
        q, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )


def response_states(backbone: Any, batch: TrainBatch) -> Tensor:
    """Returns the states that predict the response tokens, [tokens, H], row after row.

    Args:
        backbone: one that this decoder `supports`.
        batch: B rows.
    """
    tokens, num_heads = _Tokens.of(batch), heads_of(backbone)
    rotation, num_prompt = Rotation(backbone, tokens.positions), len(tokens.prompts.slots)
    x = backbone.embed_tokens(tokens.ids)
    layers = [FusedLayer.of(layer) for layer in backbone.layers]
    for layer in layers:
        projected = rotation(layer.qkv(layer.normed(x)), sum(num_heads[:2]))
        of_prompts, of_rows = projected.split_with_sizes([num_prompt, len(x) - num_prompt])
        prompt_q, *prompt_keys = tokens.prompts.heads(of_prompts, num_heads)
        q, *row_keys = tokens.rows.heads(of_rows, num_heads)
        keys, values = (
            torch.cat([of_prompt.index_select(0, tokens.prompt_of_row), own], dim=2)
            for of_prompt, own in zip(prompt_keys, row_keys, strict=True)
        )
        read = tokens.rows.tokens(attend(q, keys, values, tokens.mask))
        if layer is layers[-1]:
            x = layer.finish(x[num_prompt:], read)
        else:
            prompt_read = tokens.prompts.tokens(attend(prompt_q, prompt_keys[0], prompt_keys[1]))
            x = layer.finish(x, torch.cat([prompt_read, read]))
    return cast("Tensor", backbone.norm(x))
