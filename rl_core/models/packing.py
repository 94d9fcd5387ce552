"""A micro-batch as one row of tokens through transformers' own layers; only attention sees rows.

Norms, projections and MLPs read each token once: no padding, and a group's prompt once for all its
responses. Nothing that one layer remembers is for a later pass, so layers can forget and compute
again (gradient checkpointing). On a CPU attention, too, reads prompts once, and then each row's
response with the keys of its prompt. On a card, and for long responses, it gets whole rows, prompt
and response, right-padded and causal: they need no mask, which would keep a card from its flash
kernels, and a causal pass over a row is half of the masked one.

Legend: B rows, L longest row (prompt + response less its last token), T longest response, G
prompts, P longest prompt less its last token, N tokens computed, of which the first M are the
prompts' (without their last tokens), H hidden size, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rl_core.batch import TrainBatch
from rl_core.system.devices import has_fast_bfloat16

_ATTENTION = "sdpa_packed"
"""Name of `attention` among transformers' own."""
_NOISE = 1e-3
"""Share of the states' spread: above what float32 rounds."""
_SHORT_TOKENS = 256
"""On a CPU attention reads prompts once for responses up to this length."""
_PLAIN_TOKENS = 128
"""Up to this length plain products in bfloat16 are faster than torch's SDPA in float32."""


def select_rows(x: Tensor, index: Tensor) -> Tensor:
    """Returns the given rows of x [rows, ...], int64 [n], which must be distinct."""
    return cast("Tensor", _SelectRows.apply(x, index))  # type: ignore[no-untyped-call]  # torch leaves apply untyped


class _SelectRows(torch.autograd.Function):
    """index_select for distinct rows: its backward copies, where torch's would add row by row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.shape).index_copy_(0, index, grads[0]), None


@dataclass(frozen=True)
class _Rows:
    """Some of the tokens as right-padded rows."""

    places: Tensor
    """Which token is at each position, int64 [R, C]; past a row's end, its last."""
    slots: Tensor
    """Where the tokens are in the flattened [R * C], in their order; int64 [n]."""

    @classmethod
    def of(cls, first: Tensor, lengths: Tensor) -> _Rows:
        """Returns rows of consecutive tokens, from the first of each, both int64 [R]."""
        columns = torch.arange(int(lengths.max()), device=lengths.device)
        lengths = lengths.unsqueeze(-1)
        places = first[:, None] + columns.minimum((lengths - 1).clamp(min=0))
        return cls(places, (columns < lengths).flatten().nonzero().squeeze(-1))

    def padded(self, heads: Tensor) -> Tensor:
        """Returns [1, heads, N, D] as rows, [R, heads, C, D]; gradients of a token are added up."""
        num_heads, num_tokens = heads.shape[1:3]
        tokens = heads.transpose(1, 2).reshape(num_tokens, -1)
        # On a GPU, too, an embedding's backward adds in a fixed order, unlike index_select's.
        rows = functional.embedding(self.places, tokens)
        return rows.view(*self.places.shape, num_heads, -1).transpose(1, 2)

    def tokens(self, read: Tensor) -> Tensor:
        """Returns rows [R, C, heads, D] as their tokens, [1, n, heads, D]."""
        return select_rows(read.flatten(0, 1), self.slots).unsqueeze(0)


@dataclass(frozen=True)
class PackedRows:
    """The tokens of a micro-batch that are computed: its prompts', then its rows'.

    A row's own tokens begin with its prompt's last, whose state predicts the first of the
    response.
    """

    ids: Tensor
    """int64 [1, N]."""
    positions: Tensor
    """int64 [1, N]."""
    whole: _Rows
    """Prompt and response, [B, L]; a prompt's slots are in one of its rows."""
    prompts: _Rows
    """Of the first M tokens, [G, P]."""
    responses: _Rows
    """Of the other tokens, [B, T]."""
    sees: Tensor
    """Which positions of its whole row a response's token sees, bool [B, 1, T, L]."""

    @property
    def num_prompt_tokens(self) -> int:
        """M."""
        return len(self.prompts.slots)

    @classmethod
    def of(cls, batch: TrainBatch) -> PackedRows:
        """Returns the tokens that must be computed to predict a batch's responses."""
        prompt_rows, prompt_of_row = batch.prompts()
        before = batch.prompt_lengths - 1
        of_prompts = before[prompt_rows]
        prompts = _Rows.of(_starts(of_prompts), of_prompts)
        num_prompt_tokens = len(prompts.slots)
        first = num_prompt_tokens + _starts(batch.response_lengths)
        responses = _Rows.of(first, batch.response_lengths)
        columns = torch.arange(int((batch.lengths - 1).max()), device=before.device)
        in_prompt = columns < before.unsqueeze(-1)
        lengths = batch.lengths.unsqueeze(-1) - 1
        in_row = ~in_prompt & (columns < lengths)
        starts = torch.where(
            in_prompt, _starts(of_prompts)[prompt_of_row, None], (first - before)[:, None]
        )
        prompt_slots = (prompt_rows[:, None] * len(columns) + columns)[in_prompt[prompt_rows]]
        slots = torch.cat([prompt_slots, in_row.flatten().nonzero().squeeze(-1)])
        ends = before.unsqueeze(-1) + torch.arange(responses.places.shape[1], device=before.device)
        return cls(
            ids=batch.input_ids[:, : len(columns)].flatten()[slots].unsqueeze(0),
            positions=(slots % len(columns)).unsqueeze(0),
            whole=_Rows(starts + columns.minimum(lengths - 1), slots),
            prompts=prompts,
            responses=responses,
            sees=(columns <= ends.unsqueeze(-1)).unsqueeze(1),
        )


def _starts(lengths: Tensor) -> Tensor:
    """Returns where each of consecutive pieces of these lengths begins."""
    return lengths.cumsum(0) - lengths


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed: PackedRows | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Returns attention's output, [1, N, heads, D]; without `packed`, as transformers' SDPA does.

    The query is [1, heads, N, D], key and value are [1, heads of keys, N, D]. `packed` are the
    tokens' rows, with which the mask is ignored.
    """
    if packed is not None and not query.is_cuda and packed.sees.shape[2] <= _SHORT_TOKENS:
        return _read_apart(query, key, value, packed, kwargs.get("scaling")), None
    if packed is not None:
        query, key, value = (packed.whole.padded(x) for x in (query, key, value))
        attention_mask = None
    device = query.device.type
    if device == "cuda" and query.dtype == torch.float32 and not torch.is_autocast_enabled(device):
        # In float32 no fused kernel of CUDA takes fewer heads of keys than of queries: torch would
        # fall back to the plain product, [heads, L, L] in memory.
        num_groups = query.shape[1] // key.shape[1]
        key = repeat_kv(key, num_groups)
        value = repeat_kv(value, num_groups)
    if device == "cpu" and torch.is_autocast_enabled(device):
        # On a CPU its backward pass in bfloat16 takes 3.6 times as long as in float32.
        query, key, value = query.float(), key.float(), value.float()
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask.float()
    with torch.autocast("cpu", enabled=False):
        read, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return (read if packed is None else packed.whole.tokens(read)), None


def _read_apart(
    query: Tensor, key: Tensor, value: Tensor, packed: PackedRows, scale: float | None
) -> Tensor:
    """Returns attention's output, [1, N, heads, D], of the prompts alone and then of responses."""

    def read(rows: _Rows, seen: _Rows, sees: Tensor | None) -> Tensor:
        states = rows.padded(query), seen.padded(key), seen.padded(value)
        return rows.tokens(_attend(*states, sees, scale))

    of_responses = read(packed.responses, packed.whole, packed.sees)
    if not packed.num_prompt_tokens:
        return of_responses
    return torch.cat([read(packed.prompts, packed.prompts, None), of_responses], dim=1)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, sees: Tensor | None, scale: float | None
) -> Tensor:
    """Returns what rows read, [R, C, heads, D]; causal without `sees` (bool [R, 1, C, L])."""
    with torch.autocast("cpu", enabled=False):
        if value.dtype == torch.bfloat16:  # rotated queries and keys may be float32
            if sees is not None and sees.shape[2] <= _PLAIN_TOKENS and has_fast_bfloat16():
                return _by_products(query, key, value, sees, scale)
            query, key, value = query.float(), key.float(), value.float()
        return functional.scaled_dot_product_attention(
            query, key, value, sees, is_causal=sees is None, scale=scale, enable_gqa=True
        ).transpose(1, 2)


def _by_products(
    query: Tensor, key: Tensor, value: Tensor, sees: Tensor, scale: float | None
) -> Tensor:
    """Returns what rows read, [R, C, heads, D]; the softmax is in float32."""
    num_rows, _, num_queries, size = query.shape
    scaled = (query * (scale or size**-0.5)).to(value.dtype)
    grouped = scaled.reshape(num_rows, key.shape[1], -1, size)
    scores = (grouped @ key.to(value.dtype).transpose(-1, -2)).float()
    hidden = ~sees.repeat(1, 1, grouped.shape[2] // num_queries, 1)
    shares = scores.masked_fill_(hidden, -torch.inf).softmax(-1)
    return (shares.to(value.dtype) @ value).view(query.shape).transpose(1, 2)


ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(_ATTENTION, sdpa_mask)


@torch.no_grad()
def allow_packing(model: transformers.PreTrainedModel) -> None:
    """Makes a model's SDPA attention take packed rows, if its class can; no result changes.

    That is tried with two responses to one prompt: some classes attend by themselves.
    """
    is_sdpa = model.config.get_text_config()._attn_implementation == "sdpa"
    if not (is_sdpa and getattr(model, "_supports_attention_backend", False)):
        return
    ids = torch.tensor([[0, 1, 2, 3], [0, 1, 4, 5]], device=model.device)
    twos = torch.full_like(ids[:, 0], 2)
    zeros = torch.zeros(2, 2, device=model.device)
    batch = TrainBatch(ids, twos, twos, zeros, zeros[0], twos, twos > 0, twos > 2)
    backbone = model.get_decoder()
    read = backbone(input_ids=ids, use_cache=False).last_hidden_state
    expected = read.flatten(0, 1)[batch.predictor_index()]
    model.set_attn_implementation(_ATTENTION)
    try:
        states = packed_states(backbone, batch)
        is_same = bool((states - expected).abs().max() < _NOISE * expected.std())
    except (RuntimeError, TypeError):
        is_same = False
    if not is_same:
        model.set_attn_implementation("sdpa")


def takes_packed_rows(backbone: Any) -> bool:
    """Returns whether `packed_states` can read a backbone."""
    return str(backbone.config.get_text_config()._attn_implementation) == _ATTENTION


def packed_states(backbone: nn.Module, batch: TrainBatch) -> Tensor:
    """Returns the states that predict the response tokens, [N - M, H], row after row.

    The backbone must be one that `takes_packed_rows`; each layer must see all earlier tokens.
    """
    packed = PackedRows.of(batch)
    states: Tensor = backbone(
        input_ids=packed.ids,
        position_ids=packed.positions,
        use_cache=False,
        attention_mask=packed.ids[None, None],  # of 4 dimensions, so that no mask is made
        packed=packed,
    ).last_hidden_state[0]
    return states[packed.num_prompt_tokens :]
