"""A micro-batch as one row of tokens through transformers' own layers; attention alone sees rows.

Norms, projections and MLPs read each token once: no padding, and a group's prompt once for all its
responses. Attention does one of two things, as `allow_packing` is told:

`sdpa` gets whole rows, prompt and response, right-padded and causal: it needs no mask (which would
keep a GPU from its flash kernels) and nothing that one layer remembers for a later pass, so layers
can forget and compute again (gradient checkpointing). It reads prompts once per row: a small part
of a layer's work.

`flex` (FlexAttention) reads the row of tokens as it is. Of each token it is told which it sees: its
own segment up to itself and, in a response, its prompt. Kernels leave out blocks of 128 by 128 of
which nothing is seen, so there is neither padding nor a mask of all pairs.

Legend: B rows, L longest row (prompt + response less its last token), N tokens computed, of which
M stand before the rows' own (prompts without their last token), H hidden size, D head size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    flex_attention_mask,
    sdpa_mask,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from rl_core.batch import TrainBatch
from rl_core.models.select_rows import select_rows

ATTENTION = "sdpa_packed"
"""Name of `attention` among transformers' own."""
FLEX_ATTENTION = "flex_packed"
"""Name of `packed_flex` among them."""
_BLOCK = 128
"""Tokens, FlexAttention's default: of pairs of such blocks all is seen, some of it, or nothing."""
_LEAST_HEAD_SIZE = 16
"""Triton's products know none below."""


@dataclass(frozen=True)
class PackedRows:
    """The tokens of a micro-batch that are computed: its prompts', then its rows'.

    A row's own begin with the last token of its prompt, whose state predicts the first of the
    response.
    """

    ids: Tensor
    """int64 [1, N]."""
    positions: Tensor
    """int64 [1, N]."""
    num_prompt_tokens: int
    """M."""
    places: Tensor
    """Which token stands where in the rows, int64 [B, L]; behind a row's end, its last."""
    slots: Tensor
    """Where in the flattened [B * L] each token stands; a prompt's, in one of its rows; int64 [N].
    """

    @classmethod
    def of(cls, batch: TrainBatch) -> PackedRows:
        """Returns the tokens that the states before a batch's responses need."""
        device = batch.input_ids.device
        prompt_rows, prompt_of_row = batch.prompts()
        before, lengths = batch.prompt_lengths - 1, batch.lengths - 1
        columns = torch.arange(int(lengths.max()), device=device)
        of_prompts = columns < before[prompt_rows].unsqueeze(-1)
        in_prompt = columns < before.unsqueeze(-1)
        in_row = ~in_prompt & (columns < lengths.unsqueeze(-1))
        num_prompt_tokens = int(of_prompts.sum())
        first_of_prompt = _starts(before[prompt_rows])[prompt_of_row]
        first_of_row = num_prompt_tokens + _starts(batch.response_lengths) - before
        within = columns.minimum(lengths.unsqueeze(-1) - 1)
        places = within + torch.where(in_prompt, first_of_prompt[:, None], first_of_row[:, None])
        prompt_slots = prompt_rows[:, None] * len(columns) + columns
        slots = torch.cat([prompt_slots[of_prompts], in_row.flatten().nonzero().squeeze(-1)])
        ids = batch.input_ids[:, : len(columns)].flatten()
        return cls(
            ids=ids[slots].unsqueeze(0),
            positions=(slots % len(columns)).unsqueeze(0),
            num_prompt_tokens=num_prompt_tokens,
            places=places,
            slots=slots,
        )

    def rows(self, heads: Tensor) -> Tensor:
        """Returns [1, heads, N, D] as rows, [B, heads, L, D]; gradients of a token are added up."""
        num_heads, num_tokens = heads.shape[1:3]
        tokens = heads.transpose(1, 2).reshape(num_tokens, -1)
        # An embedding's backward adds in one order on a GPU too, where index_select's does not.
        rows = functional.embedding(self.places, tokens)
        return rows.view(*self.places.shape, num_heads, -1).transpose(1, 2)

    def tokens(self, read: Tensor) -> Tensor:
        """Returns rows [B, L, heads, D] as tokens, [1, N, heads, D]."""
        return select_rows(read.flatten(0, 1), self.slots).unsqueeze(0)

    def seen(self, prompt_lengths: Tensor) -> BlockMask:
        """Returns which token sees which: its segment up to itself, a row's also its prompt.

        Args:
            prompt_lengths: of the B rows.
        """
        index = torch.arange(len(self.slots), device=self.slots.device)
        rows, is_prompt = self.slots // self.places.shape[1], index < self.num_prompt_tokens
        before = (prompt_lengths - 1)[rows]
        own = index - self.positions[0] + before.masked_fill(is_prompt, 0), index + 1
        first = self.places[:, 0][rows]  # without a prompt before the row, the row's: an empty span
        return _block_mask(own, (first, first + before.masked_fill(is_prompt, 0)))


def _starts(lengths: Tensor) -> Tensor:
    """Returns where each of so many begins, one after another."""
    return lengths.cumsum(0) - lengths


def _block_mask(own: tuple[Tensor, Tensor], prompts: tuple[Tensor, Tensor]) -> BlockMask:
    """Returns a mask of tokens that each see two spans of tokens, which have none in common.

    Args:
        own: the first token seen, and the one behind the last, of each token; int64 [N] each.
        prompts: the same of the other span, which may be empty.
    """
    num_tokens, device = len(own[0]), own[0].device
    num_blocks = -(-num_tokens // _BLOCK)
    rows = torch.arange(num_tokens, device=device) // _BLOCK * (num_blocks + 1)

    def how_many(firsts: Tensor, ends: Tensor, is_real: Tensor) -> Tensor:
        """Returns how many tokens of a block have another within [first, end) of theirs."""
        edges = torch.zeros(num_blocks * (num_blocks + 1), dtype=torch.int32, device=device)
        one = is_real.int()
        edges.index_add_(0, rows + firsts, one).index_add_(0, rows + ends, -one)
        return edges.view(num_blocks, num_blocks + 1).cumsum(-1)[:, :-1]

    touched = whole = torch.zeros((num_blocks, num_blocks), dtype=torch.int64, device=device)
    for first, end in (own, prompts):
        outer = first // _BLOCK, (end + _BLOCK - 1) // _BLOCK
        inner = (first + _BLOCK - 1) // _BLOCK, end // _BLOCK
        touched = touched + how_many(*outer, first < end)
        whole = whole + how_many(*inner, inner[0] < inner[1])
    is_whole = whole == _BLOCK
    (first, end), (prompt_first, prompt_end) = own, prompts

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        in_own = (key >= first[query]) & (key < end[query])
        return in_own | ((key >= prompt_first[query]) & (key < prompt_end[query]))

    return BlockMask.from_kv_blocks(
        *_in_order((touched > 0) & ~is_whole),
        *_in_order(is_whole),
        BLOCK_SIZE=_BLOCK,
        mask_mod=sees,
        seq_lengths=(num_tokens, num_tokens),
    )


def _in_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns of bool [n, n] how many are true in each row, and which, first of all."""
    order = blocks.int().argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(dim=-1, dtype=torch.int32)[None, None], order.int()[None, None]


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
    """Returns what queries read, [1, N, heads, D]; without `packed`, what transformers' SDPA does.

    Args:
        module: a layer's attention.
        query: [1, heads, N, D].
        key: [1, heads of keys, N, D].
        value: of the same shape.
        attention_mask: ignored with `packed`.
        packed: the tokens' rows.
        **kwargs: for transformers' SDPA.
    """
    if packed is not None:
        query, key, value = packed.rows(query), packed.rows(key), packed.rows(value)
        attention_mask = None
    device = query.device.type
    if device == "cuda" and query.dtype == torch.float32 and not torch.is_autocast_enabled(device):
        # In float32 no fused kernel of CUDA takes fewer heads of keys than of queries: torch would
        # fall back to the plain product, [heads, L, L] in memory.
        num_groups = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, num_groups), repeat_kv(value, num_groups)
    read, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return (read if packed is None else packed.tokens(read)), None


def packed_flex(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    *,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Returns what queries read, [1, N, heads, D], by FlexAttention.

    Args:
        module: a layer's attention.
        query: [1, heads, N, D].
        key: [1, heads of keys, N, D].
        value: of the same shape.
        attention_mask: which token sees which.
        scaling: of the scores.
        **kwargs: for other kinds of attention.
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):  # which knows SDPA, and not every torch FlexAttention
        dtype = torch.get_autocast_dtype(device)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    read = flex_kernel()(
        query,
        key,
        value,
        block_mask=attention_mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        # Few tokens would get a kernel for decoding, of which there is no backward pass.
        kernel_options={"FORCE_USE_FLEX_ATTENTION": True},
    )
    return read.transpose(1, 2).contiguous(), None


def flex_kernel() -> Callable[..., Tensor]:
    """Returns FlexAttention, which is a kernel only where torch.compile makes it one."""
    if torch.compiler.is_compiling():  # a whole layer, and this with it
        return flex_attention
    return _compiled_flex()


@cache
def _compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=True)  # once for all numbers of tokens


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)
ALL_ATTENTION_FUNCTIONS.register(FLEX_ATTENTION, packed_flex)
ALL_MASK_ATTENTION_FUNCTIONS.register(FLEX_ATTENTION, flex_attention_mask)


def allow_packing(model: transformers.PreTrainedModel) -> None:
    """Makes the model's attention take packed rows, where its architecture can; no result changes.

    Args:
        model: with SDPA attention.
    """
    if getattr(model, "_supports_attention_backend", False):
        model.set_attn_implementation(ATTENTION)


def use_flex(model: transformers.PreTrainedModel) -> None:
    """Makes the model read packed rows by FlexAttention, always.

    Args:
        model: with SDPA attention; layers all see all tokens before one.

    Raises:
        ValueError: if its architecture cannot, or its heads are too small.
    """
    config = model.config.get_text_config()
    per_head = config.hidden_size // config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or per_head
    if not getattr(model, "_supports_attention_backend", False):
        raise ValueError(f"model.attention=flex: a {config.model_type} cannot, use sdpa")
    if head_size < _LEAST_HEAD_SIZE:
        raise ValueError(
            f"model.attention=flex: heads of {head_size} are below {_LEAST_HEAD_SIZE}, use sdpa"
        )
    model.set_attn_implementation(FLEX_ATTENTION)


def takes_packed_rows(backbone: Any) -> bool:
    """Returns whether `packed_states` can read a backbone."""
    return _attention_of(backbone) in (ATTENTION, FLEX_ATTENTION)


def wants_packed_rows(backbone: Any) -> bool:
    """Returns whether a backbone's attention is made for nothing else."""
    return _attention_of(backbone) == FLEX_ATTENTION


def _attention_of(backbone: Any) -> str:
    return str(backbone.config.get_text_config()._attn_implementation)


def packed_states(backbone: nn.Module, batch: TrainBatch) -> Tensor:
    """Returns the states that predict the response tokens, [N - M, H], row after row.

    Args:
        backbone: one that `takes_packed_rows`, whose layers all see all tokens before one.
        batch: B rows.
    """
    packed = PackedRows.of(batch)
    by_attention: dict[str, Any] = (
        {"attention_mask": packed.seen(batch.prompt_lengths)}
        if wants_packed_rows(backbone)
        # Of 4 dimensions: so that none is made.
        else {"attention_mask": packed.slots[None, None, None], "packed": packed}
    )
    states: Tensor = backbone(
        input_ids=packed.ids, position_ids=packed.positions, use_cache=False, **by_attention
    ).last_hidden_state[0]
    return states[packed.num_prompt_tokens :]
