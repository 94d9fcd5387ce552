"""Generation by the learner's decoder: a Qwen2 or Llama in float32 on a CPU, prompts shared.

Legend: b responses still running, G prompts, P longest prompt less its last token, V vocabulary,
H hidden size, Q query heads, K key heads, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from rl_core.models.decoder import FusedLayer, Rotation, attend, heads_of, segments
from rl_core.rollout.shared_prompts import RoomyLayer, SharedPrompts


@dataclass
class FusedContext:
    """What the responses have behind them: all tokens but the last of each."""

    prompts: SharedPrompts
    own: list[RoomyLayer]
    """Keys and values of each layer, from the prompt's last token on."""
    positions: Tensor
    """Of the next tokens, int64 [b]."""

    def keep(self, rows: Tensor) -> None:
        """Keeps these responses alone, int64."""
        for layer in self.own:
            layer.batch_select_indices(rows)
        self.positions = self.positions[rows]
        self.prompts = self.prompts.keep(rows.tolist())


class FusedModel:
    """A causal LM with its weights as they are now, side by side in a copy.

    Args:
        model: whose backbone `decoder.supports`.
    """

    def __init__(self, model: Any) -> None:
        self._backbone, self._head = model.get_decoder(), model.get_output_embeddings()
        self._layers = [FusedLayer.of(layer) for layer in self._backbone.layers]
        self._heads = heads_of(self._backbone)

    def read_prompts(
        self, prompts: Sequence[Sequence[int]], prompt_of_row: list[int]
    ) -> tuple[FusedContext, Tensor]:
        """Reads each prompt once; returns what follows must know, and logits float32 [b, V].

        Args:
            prompts: token ids, G times.
            prompt_of_row: of which each response goes on, b times.
        """
        lengths = torch.tensor([len(prompt) - 1 for prompt in prompts])
        is_real = torch.arange(max(int(lengths.max()), 1)) < lengths.unsqueeze(-1)
        keys, values = self._prompt_keys(prompts, is_real)
        rows = torch.tensor(prompt_of_row)
        context = FusedContext(
            SharedPrompts.of(keys, values, ~is_real[:, None, None], prompt_of_row),
            [RoomyLayer() for _ in self._layers],
            lengths[rows],
        )
        last = torch.tensor([prompt[-1] for prompt in prompts])
        return context, self.next_logits(last[rows], context)

    def _prompt_keys(
        self, prompts: Sequence[Sequence[int]], is_real: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns keys and values of each layer, [G, K, P, D], of all but the prompts' last tokens.

        Args:
            prompts: token ids, G times.
            is_real: which columns each of them has, bool [G, P].
        """
        tokens, columns = segments(is_real), torch.arange(is_real.shape[1])
        rotation = Rotation(self._backbone, columns.expand_as(is_real)[is_real])
        ids = [token for prompt in prompts for token in prompt[:-1]]
        x = self._backbone.embed_tokens(torch.tensor(ids, dtype=torch.int64))
        keys, values = list[Tensor](), list[Tensor]()
        for layer in self._layers:
            projected = rotation(layer.qkv(layer.normed(x)), sum(self._heads[:2]))
            q, k, v = tokens.heads(projected, self._heads)
            keys.append(k.contiguous())
            values.append(v.contiguous())
            if layer is self._layers[-1]:
                break
            x = layer.finish(x, tokens.tokens(attend(q, k, v)))
        return keys, values

    def next_logits(self, token: Tensor, context: FusedContext) -> Tensor:
        """Returns the logits after a further token int64 [b] of each response, float32 [b, V]."""
        x = self._backbone.embed_tokens(token)
        rotation = Rotation(self._backbone, context.positions)
        context.positions = context.positions + 1
        num_rows, num_keys = len(token), self._heads[1]
        for number, (layer, own) in enumerate(zip(self._layers, context.own, strict=True)):
            projected = rotation(layer.qkv(layer.normed(x)), sum(self._heads[:2]))
            by_head = projected.view(num_rows, sum(self._heads), 1, -1)
            q, k, v = by_head.split_with_sizes(self._heads, dim=1)
            scaled = q.reshape(num_rows, num_keys, -1, q.shape[-1]) * q.shape[-1] ** -0.5
            read = context.prompts.attend(number, scaled, *own.update(k, v))
            x = layer.finish(x, read.reshape(num_rows, -1))
        return cast("Tensor", self._head(self._backbone.norm(x)))
