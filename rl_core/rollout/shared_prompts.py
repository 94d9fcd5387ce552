"""Attention of one new token per response to a prompt that is kept once for all its responses.

Legend: b responses, G prompts, n responses of a prompt at most, P longest prompt, t tokens
generated so far, H heads, K of them with keys of their own, r = H / K, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

ATTENTION = "shared_prompts"
"""The implementation's name for transformers: SDPA, unless `shared_prompts` are passed along."""
_ROOM_TOKENS = 128


@dataclass(frozen=True)
class SharedPrompts:
    """Keys and values of the prompts, and which response belongs to which."""

    keys: list[Tensor]
    """Of each layer, [G, K, P, D]."""
    values: list[Tensor]
    """Of each layer, [G, K, P, D]."""
    is_padding: Tensor
    """bool [G, 1, 1, P]."""
    prompt_of_row: list[int]
    """The prompt of each response, of b; every prompt has one."""
    rows: Tensor
    """The responses of each prompt, int64 [G * n]; a prompt with fewer repeats its first."""
    places: Tensor
    """The position of each response in `rows`, int64 [b]."""

    @classmethod
    def of(
        cls, keys: list[Tensor], values: list[Tensor], is_padding: Tensor, prompt_of_row: list[int]
    ) -> Self:
        """Returns prompts with their responses in order; takes the fields of these names."""
        members: list[list[int]] = [[] for _ in range(len(is_padding))]
        for row, prompt in enumerate(prompt_of_row):
            members[prompt].append(row)
        most = max(len(rows) for rows in members)
        rows = [row for alike in members for row in alike + alike[:1] * (most - len(alike))]
        places = {row: place for place, row in reversed(list(enumerate(rows)))}
        in_order = [places[row] for row in range(len(prompt_of_row))]
        device = is_padding.device
        return cls(
            keys,
            values,
            is_padding,
            prompt_of_row,
            torch.tensor(rows, device=device),
            torch.tensor(in_order, device=device),
        )

    def keep(self, rows: Sequence[int]) -> Self:
        """Returns only what these responses need."""
        prompts = [self.prompt_of_row[row] for row in rows]
        left = sorted(set(prompts))
        index = torch.tensor(left, device=self.is_padding.device)
        return self.of(
            [keys[index] for keys in self.keys],
            [values[index] for values in self.values],
            self.is_padding[index],
            [left.index(prompt) for prompt in prompts],
        )

    def attend(self, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Returns the attention output of each response's new token in a layer, [b, K, r, D].

        The query is scaled, [b, K, r, D]; keys and values are of generated tokens, [b, K, t, D].
        """
        prompt_keys = self.keys[layer]
        prompt_values = self.values[layer]
        to_prompt = self._by_prompt(query) @ prompt_keys.transpose(-1, -2)
        to_prompt = to_prompt.masked_fill(self.is_padding, -torch.inf)
        scores = [self._by_row(to_prompt, query.shape[2]), query @ keys.transpose(-1, -2)]
        shares = torch.cat(scores, dim=-1).softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        longest = prompt_keys.shape[2]
        of_prompt = self._by_prompt(shares[..., :longest]) @ prompt_values
        return self._by_row(of_prompt, query.shape[2]) + shares[..., longest:] @ values

    def _by_prompt(self, x: Tensor) -> Tensor:
        """Returns [b, K, r, X] as [G, K, n * r, X]."""
        num_prompts = len(self.is_padding)
        _, heads, queries, width = x.shape
        grouped = x[self.rows].view(num_prompts, -1, heads, queries, width)
        return grouped.transpose(1, 2).reshape(num_prompts, heads, -1, width)

    def _by_row(self, x: Tensor, queries: int) -> Tensor:
        """Returns [G, K, n * r, X] as [b, K, r, X]."""
        num_prompts, heads, _, width = x.shape
        rows = x.view(num_prompts, heads, -1, queries, width).transpose(1, 2)
        return rows.flatten(0, 1)[self.places]


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """Keys and values with room to grow: the library's layer copies all of them at each token."""

    keys: Tensor
    values: Tensor
    _room: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds the keys and values [b, K, 1, D] of a token; returns those of all tokens."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._room is None or self._room[0].shape[-2] < end:
            self._room = (
                _larger(self.keys, key_states, end + _ROOM_TOKENS),
                _larger(self.values, value_states, end + _ROOM_TOKENS),
            )
        keys, values = self._room
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys = keys[:, :, :end]
        self.values = values[:, :, :end]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keeps these rows, int64."""
        super().reorder_cache(beam_idx)
        self._room = None


def _larger(old: Tensor, new: Tensor, num_tokens: int) -> Tensor:
    """Returns a buffer for tokens like those of `new`, [b, K, t, D], which begins with `old`."""
    room = new.new_empty(*new.shape[:2], num_tokens, new.shape[-1])
    if old.numel():
        room[:, :, : old.shape[-2]] = old
    return room


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    shared_prompts: SharedPrompts | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Returns [b, tokens, H, D], as transformers asks of an attention function."""
    if shared_prompts is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)[0], None
    scaling = others.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    grouped = (query * scale).view(len(query), key.shape[1], -1, query.shape[-1])
    read = shared_prompts.attend(int(module.layer_idx), grouped, key, value)  # type: ignore[arg-type]  # torch types attributes as modules
    return read.reshape(len(query), 1, -1, query.shape[-1]), None


AttentionInterface.register(ATTENTION, _attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
