"""Stage 3 with transformers alone: slower than vLLM, and runs wherever torch does.

B requests of a batch (left-padded), P longest prompt, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from rl_core.rollout.model_files import complete_weights, stop_token_ids, weight_shapes
from rl_core.types import Completion, GenerationRequest, SamplingSettings


class HfEngine:
    """A transformers model with a KV cache and a generator of random numbers per request."""

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
        input_ids, attention_mask = self._left_padded(requests)
        generators = [torch.Generator().manual_seed(request.seed) for request in requests]
        position_ids = (attention_mask.cumsum(1) - 1).clamp(min=0)
        alive = torch.ones(len(requests), dtype=torch.bool, device=self._device)
        cache = DynamicCache(config=self._model.config)
        tokens, logprobs, was_alive = [], [], []
        for _ in range(sampling.max_tokens):
            logits = self._model(
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=cache,
                logits_to_keep=1,
            ).logits[:, -1]
            token, logprob = _sample(logits.float(), sampling.temperature, generators)
            tokens.append(token)
            logprobs.append(logprob)
            was_alive.append(alive)
            alive = alive & ~torch.isin(token, self._stop_ids)
            if not alive.any():
                break
            # Finished rows go on until the last one is: what they sample is cut off below.
            input_ids = token[:, None]
            position_ids = position_ids[:, -1:] + 1
            attention_mask = torch.cat([attention_mask, torch.ones_like(input_ids)], dim=1)
        lengths = torch.stack(was_alive, dim=1).sum(dim=1).tolist()
        return [
            Completion(
                response_ids=row_tokens[:length].astype(np.int64),
                logprobs=row_logprobs[:length].astype(np.float32),
                finish_reason="length" if unfinished else "stop",
            )
            for row_tokens, row_logprobs, length, unfinished in zip(
                torch.stack(tokens, dim=1).cpu().numpy(),
                torch.stack(logprobs, dim=1).cpu().numpy(),
                lengths,
                alive.tolist(),
                strict=True,
            )
        ]

    def _left_padded(
        self, requests: Sequence[GenerationRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns prompts int64 [B, P] and their mask int64 [B, P]; padding is token 0, masked."""
        longest = max(len(request.prompt_ids) for request in requests)
        input_ids = torch.zeros(len(requests), longest, dtype=torch.int64)
        attention_mask = torch.zeros_like(input_ids)
        for row, request in enumerate(requests):
            start = longest - len(request.prompt_ids)
            input_ids[row, start:] = torch.tensor(request.prompt_ids)
            attention_mask[row, start:] = 1
        return input_ids.to(self._device), attention_mask.to(self._device)


def _sample(
    logits: torch.Tensor, temperature: float, generators: Sequence[torch.Generator]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the next tokens int64 [B] and their log-probs float32 [B], from logits [B, V].

    Each row draws its noise from its own generator, on the CPU, so a sample depends on neither the
    batch nor the device. The largest of probability / exponential noise is a sample (Gumbel-max).
    """
    if temperature == 0:
        logprobs = logits.log_softmax(dim=-1)
        token = logits.argmax(dim=-1)
    else:
        logprobs = (logits / temperature).log_softmax(dim=-1)
        noise = torch.stack(
            [torch.empty(logits.shape[1]).exponential_(generator=g) for g in generators]
        )
        token = (logprobs - noise.to(logits.device).log()).argmax(dim=-1)
    return token, logprobs.gather(1, token[:, None])[:, 0]
