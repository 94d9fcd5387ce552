"""Stage 3 with transformers alone: slower than vLLM, and runs wherever torch does.

B requests of a batch, b of them still running, P longest prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer

from rl_core.rollout.model_files import complete_weights, stop_token_ids, weight_shapes
from rl_core.types import Completion, GenerationRequest, SamplingSettings

_ROOM_TOKENS = 128


class HfEngine:
    """A transformers model with a KV cache and random numbers per request."""

    def __init__(
        self,
        model_path: Path,
        *,
        dtype: Literal["float32", "bfloat16"],
        max_num_seqs: int,
        on_gpu: bool,
    ) -> None:
        """Loads the model.

        Args:
            model_path: a Hugging Face folder.
            dtype: compute type.
            max_num_seqs: responses generated at a time.
            on_gpu: whether to compute on a GPU.
        """
        self._device = torch.device("cuda" if on_gpu else "cpu")
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            model_path, dtype=getattr(torch, dtype)
        ).to(self._device)
        self._model.eval()
        self._shapes = weight_shapes(model_path)
        self._stop_ids = torch.tensor(stop_token_ids(model_path), device=self._device)
        self._max_num_seqs = max_num_seqs

    def generate(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        """Returns one completion per request; see `RolloutEngine.generate`."""
        completions = []
        for start in range(0, len(requests), self._max_num_seqs):
            batch = requests[start : start + self._max_num_seqs]
            completions += self._generate_batch(batch, sampling)
        return completions

    def update_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Replaces all weights in place; see `RolloutEngine.update_weights`."""
        own = self._model.state_dict()
        with torch.no_grad():
            for name, tensor in complete_weights(weights, self._shapes).items():
                own[name].copy_(tensor)

    def close(self) -> None:
        """Frees the model."""
        del self._model

    @torch.inference_mode()
    def _generate_batch(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings
    ) -> list[Completion]:
        # What each row will draw is drawn at once: a sample depends on its seed, not on the batch.
        draws = torch.stack(
            [
                torch.rand(sampling.max_tokens, generator=torch.Generator().manual_seed(r.seed))
                for r in requests
            ]
        ).to(self._device)
        logits, cache, attention_mask = self._read_prompts(requests)
        position_ids = attention_mask.sum(1, keepdim=True)
        rows = torch.arange(len(requests), device=self._device)
        tokens = torch.zeros_like(draws, dtype=torch.int64)
        logprobs, lengths = torch.zeros_like(draws), torch.zeros_like(rows)
        ended = torch.zeros_like(rows, dtype=torch.bool)
        for step in range(sampling.max_tokens):
            token, logprob = _sample(logits, sampling.temperature, draws[rows, step])
            tokens[rows, step], logprobs[rows, step] = token, logprob
            # Rows that have ended go on until half have: what they sample counts for nothing.
            lengths[rows] += ~ended[rows]
            ended[rows] |= torch.isin(token, self._stop_ids)
            if bool(ended[rows].all()) or step + 1 == sampling.max_tokens:
                break
            if 2 * int(ended[rows].sum()) >= len(rows):
                kept = (~ended[rows]).nonzero().squeeze(-1)
                rows, token = rows[kept], token[kept]
                attention_mask, position_ids = attention_mask[kept], position_ids[kept]
                cache.batch_select_indices(kept)
            attention_mask = torch.cat([attention_mask, torch.ones_like(token)[:, None]], dim=1)
            logits = self._logits(token[:, None], attention_mask, position_ids, cache)
            position_ids = position_ids + 1
        return [
            Completion(
                response_ids=row_tokens[:length],
                logprobs=row_logprobs[:length],
                finish_reason="stop" if is_ended else "length",
            )
            for row_tokens, row_logprobs, length, is_ended in zip(
                tokens.cpu().numpy(),
                logprobs.cpu().numpy(),
                lengths.tolist(),
                ended.tolist(),
                strict=True,
            )
        ]

    def _read_prompts(
        self, requests: Sequence[GenerationRequest]
    ) -> tuple[torch.Tensor, DynamicCache, torch.Tensor]:
        """Reads each distinct prompt once; returns logits [B, V], keys and values, and mask [B, P].

        Prompts are padded on the left with token 0, masked.
        """
        places: dict[tuple[int, ...], int] = {}
        prompt_of_row = [places.setdefault(r.prompt_ids, len(places)) for r in requests]
        longest = max(len(prompt) for prompt in places)
        input_ids = torch.zeros(len(places), longest, dtype=torch.int64)
        mask = torch.zeros_like(input_ids)
        for prompt, place in places.items():
            input_ids[place, longest - len(prompt) :] = torch.tensor(prompt)
            mask[place, longest - len(prompt) :] = 1
        input_ids, mask = input_ids.to(self._device), mask.to(self._device)
        cache = DynamicCache(config=self._model.config)
        cache.layers = [_with_room(layer) for layer in cache.layers]
        logits = self._logits(input_ids, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)
        rows = torch.tensor(prompt_of_row, device=self._device)
        if len(places) < len(requests):
            cache.batch_select_indices(rows)
        return logits[rows], cache, mask[rows]

    def _logits(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        position_ids: torch.Tensor,
        cache: DynamicCache,
    ) -> torch.Tensor:
        """Returns the logits after the last token of each row, float32 [b, V]."""
        result = self._model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            logits_to_keep=1,
        )
        return cast("torch.Tensor", result.logits[:, -1].float())


class _RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped here
    """Keys and values with room to grow: the library's layer copies all of them at each token."""

    keys: torch.Tensor
    values: torch.Tensor
    _room: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Adds the keys and values [b, heads, t, size] of t tokens; returns those of all tokens."""
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
        keys[:, :, start:end], values[:, :, start:end] = key_states, value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps these rows (int64 [b]), each as often as it is named."""
        super().batch_select_indices(indices)
        self._room = None


def _larger(old: torch.Tensor, new: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Returns room for tokens like those of `new`, [b, heads, t, size], begun with the old ones."""
    room = new.new_empty(*new.shape[:2], num_tokens, new.shape[-1])
    if old.numel():
        room[:, :, : old.shape[-2]] = old
    return room


def _with_room(layer: Any) -> Any:
    return _RoomyLayer() if type(layer) is DynamicLayer else layer


def _sample(
    logits: torch.Tensor, temperature: float, draws: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the next tokens int64 [b] and their log-probs float32 [b].

    Args:
        logits: float32 [b, V].
        temperature: 0 takes the likeliest token.
        draws: float32 [b] from [0, 1): a token is drawn where they cut the cumulated probabilities.
    """
    if temperature == 0:
        token = logits.argmax(dim=-1, keepdim=True)
        log_sums = logits.logsumexp(dim=-1, keepdim=True)
    else:
        logits = logits / temperature
        log_sums = logits.logsumexp(dim=-1, keepdim=True)
        cumulated = (logits - log_sums).exp_().cumsum(dim=-1)
        total = cumulated[:, -1:].contiguous()
        # Strictly below the total, or rounding would now and then point past the last token.
        cut = torch.minimum(draws[:, None] * total, total.nextafter(torch.zeros_like(total)))
        token = torch.searchsorted(cumulated, cut, right=True)
    return token[:, 0], (logits.gather(1, token) - log_sums)[:, 0]
