"""A micro-batch as one row of tokens through transformers' own layers; only attention sees rows.

Norms, projections and MLPs read each token once: no padding, and a group's prompt once for all its
responses. Attention gets whole rows, prompt and response, right-padded and causal: it needs no mask
(which would keep a GPU from its flash kernels) and nothing that one layer remembers for a later
pass, so layers can forget and compute again (gradient checkpointing). It reads prompts once per
row: a small part of a layer's work.

Legend: B rows, L longest row (prompt + response less its last token), N tokens computed, of which
the first M are the prompts' (without their last tokens), H hidden size, D head size.
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

ATTENTION = "sdpa_packed"
"""Name of `attention` among transformers' own."""
_NOISE = 1e-3
"""Share of the states' spread: above what float32 rounds."""


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
class PackedRows:
    """The tokens of a micro-batch that are computed: its prompts', then its rows'.

    A row's own tokens begin with its prompt's last, whose state predicts the first of the
    response.
    """

    ids: Tensor
    """int64 [1, N]."""
    positions: Tensor
    """int64 [1, N]."""
    num_prompt_tokens: int
    """M."""
    places: Tensor
    """Which token is at each position of the rows, int64 [B, L]; past a row's end, its last."""
    slots: Tensor
    """Each token's position in the flattened [B * L], a prompt's in one of its rows; int64 [N]."""

    @classmethod
    def of(cls, batch: TrainBatch) -> PackedRows:
        """Returns the tokens that must be computed to predict a batch's responses."""
        device = batch.input_ids.device
        prompt_rows, prompt_of_row = batch.prompts()
        before = batch.prompt_lengths - 1
        lengths = batch.lengths - 1
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
        # On a GPU, too, an embedding's backward adds in a fixed order, unlike index_select's.
        rows = functional.embedding(self.places, tokens)
        return rows.view(*self.places.shape, num_heads, -1).transpose(1, 2)

    def tokens(self, read: Tensor) -> Tensor:
        """Returns rows [B, L, heads, D] as tokens, [1, N, heads, D]."""
        return select_rows(read.flatten(0, 1), self.slots).unsqueeze(0)


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
    if packed is not None:
        query, key, value = packed.rows(query), packed.rows(key), packed.rows(value)
        attention_mask = None
    device = query.device.type
    if device == "cuda" and query.dtype == torch.float32 and not torch.is_autocast_enabled(device):
        # In float32 no fused kernel of CUDA takes fewer heads of keys than of queries: torch would
        # fall back to the plain product, [heads, L, L] in memory.
        num_groups = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, num_groups), repeat_kv(value, num_groups)
    if device == "cpu" and torch.is_autocast_enabled(device):
        # On a CPU its backward pass in bfloat16 takes 3.6 times as long as in float32.
        query, key, value = query.float(), key.float(), value.float()
        if attention_mask is not None and attention_mask.is_floating_point():
            attention_mask = attention_mask.float()
    with torch.autocast("cpu", enabled=False):
        is_masked = attention_mask is not None and kwargs.get("position_bias") is None
        if device == "cpu" and is_masked:
            # Here transformers would repeat the keys for the heads of queries that share one.
            read = functional.scaled_dot_product_attention(
                query, key, value, attention_mask, scale=kwargs.get("scaling"), enable_gqa=True
            ).transpose(1, 2)
        else:
            read, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    return (read if packed is None else packed.tokens(read)), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(ATTENTION, sdpa_mask)


@torch.no_grad()
def allow_packing(model: transformers.PreTrainedModel) -> None:
    """Makes a model's SDPA attention take packed rows, if its class can; no result changes.

    That is tried with two rows of three tokens: some classes attend by themselves.
    """
    if not getattr(model, "_supports_attention_backend", False):
        return
    ids = torch.arange(6, device=model.device)
    rows = ids.view(2, 3)
    backbone = model.get_decoder()
    expected = backbone(input_ids=rows, use_cache=False).last_hidden_state
    model.set_attn_implementation(ATTENTION)
    try:
        states = _read(backbone, PackedRows(ids[None], ids[None] % 3, 0, rows, ids))
        is_same = bool((states - expected.flatten(0, 1)).abs().max() < _NOISE * expected.std())
    except (RuntimeError, TypeError):
        is_same = False
    if not is_same:
        model.set_attn_implementation("sdpa")


def takes_packed_rows(backbone: Any) -> bool:
    """Returns whether `packed_states` can read a backbone."""
    return str(backbone.config.get_text_config()._attn_implementation) == ATTENTION


def packed_states(backbone: nn.Module, batch: TrainBatch) -> Tensor:
    """Returns the states that predict the response tokens, [N - M, H], row after row.

    The backbone must be one that `takes_packed_rows`; each layer must see all earlier tokens.
    """
    packed = PackedRows.of(batch)
    return _read(backbone, packed)[packed.num_prompt_tokens :]


def _read(backbone: nn.Module, packed: PackedRows) -> Tensor:
    """Returns the states of all tokens, [N, H]."""
    states: Tensor = backbone(
        input_ids=packed.ids,
        position_ids=packed.positions,
        use_cache=False,
        attention_mask=packed.slots[None, None, None],  # of 4 dimensions, so that no mask is made
        packed=packed,
    ).last_hidden_state[0]
    return states
