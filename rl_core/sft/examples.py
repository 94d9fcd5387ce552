"""The texts of an env as tokens to learn, and what a model makes of others, data path stage 0."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from rl_core.envs.sft_examples import SftExamples

_GENERATION_BATCH: Final = 128


@dataclass(frozen=True, slots=True)
class Example:
    """Token ids of prompt and response, and the loss weight of each id: 0 teaches nothing."""

    ids: list[int]
    weights: list[float]


def draw_examples(
    source: SftExamples, tokenizer: PreTrainedTokenizerFast, count: int, rng: random.Random
) -> list[Example]:
    """Returns a fresh batch; prompt and response are tokenized apart, as in a rollout."""
    drawn = source.draw(count, rng)
    texts = [text.prompt for text in drawn] + [text.response for text in drawn]
    # One call: what the weights look for, the prompts, the responses.
    encoded = tokenizer([*source.marks, *texts])["input_ids"]
    marks = [ids[0] for ids in encoded[: len(source.marks)]]
    ids = encoded[len(source.marks) :]
    examples = []
    for text, prompt, response in zip(drawn, ids[:count], ids[count:], strict=True):
        response.append(tokenizer.eos_token_id)
        weights = source.weigh(text, response, marks)
        examples.append(Example(prompt + response, [0.0] * len(prompt) + weights))
    return examples


def measure(
    source: SftExamples,
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_tokens: int,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Returns what greedy responses to held-out problems are worth, and the gates missed.

    Beside what the env itself measures: mean_prompt_tokens, and mean_response_tokens, end included.
    """
    prompts = source.held_out
    responses = greedy_responses(model, tokenizer, prompts, max_tokens=max_tokens)
    measured = source.judge(tokenizer.batch_decode(responses, skip_special_tokens=True))
    count = len(prompts)
    measured["mean_prompt_tokens"] = sum(map(len, tokenizer(list(prompts))["input_ids"])) / count
    measured["mean_response_tokens"] = sum(map(len, responses)) / count
    return measured, source.failed_gates(measured)


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
