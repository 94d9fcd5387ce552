"""What a home-made base model is made from: the texts of an env, data path stage 0."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

_GENERATION_BATCH: Final = 128


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of prompt and response, and the loss weight of each id: 0 teaches nothing."""

    ids: list[int]
    weights: list[float]


class ExampleSource(Protocol):
    """The texts of one env: Countdown's search traces, or the solutions of word problems."""

    def tokenizer_texts(self, rng: random.Random) -> list[str]:
        """Returns prompts and responses to fit the tokenizer to."""

    def examples(
        self, tokenizer: PreTrainedTokenizerFast, count: int, rng: random.Random
    ) -> list[Example]:
        """Returns a fresh batch; prompt and response are tokenized apart, as in a rollout."""

    def measure(
        self, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast
    ) -> tuple[dict[str, float], tuple[str, ...]]:
        """Returns what greedy responses to held-out problems are worth, and the gates missed."""


def require_problems(train: Sequence[Any], test: Sequence[Any]) -> None:
    """Raises ValueError unless there are problems to learn from and others to measure with."""
    if not train or not test:
        raise ValueError(
            f"{len(train)} train and {len(test)} test problems: the home-made base model needs "
            "some of both"
        )


@torch.inference_mode()
def greedy_responses(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    *,
    max_tokens: int,
) -> list[list[int]]:
    """Returns response ids, eos included, without padding."""
    responses: list[list[int]] = []
    for start in range(0, len(prompts), _GENERATION_BATCH):
        batch: Any = tokenizer(
            list(prompts[start : start + _GENERATION_BATCH]),
            return_tensors="pt",
            padding=True,
            padding_side="left",
        )
        output = model.generate(**batch, max_new_tokens=max_tokens, do_sample=False)
        for row in output[:, batch["input_ids"].shape[1] :].tolist():
            end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else None
            responses.append(row[:end])
    return responses
