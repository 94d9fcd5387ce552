"""The texts of an env as tokens to learn, and what a model makes of others, data path stage 0."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
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
    """Returns a fresh batch; prompt and turns are tokenized apart, as in a rollout."""
    drawn = source.draw(count, rng)
    turns = [text.turns or (text.response,) for text in drawn]
    # One call: what the weights look for, the prompts, the responses.
    pieces = [piece for of_one in turns for piece in of_one]
    encoded = iter(tokenizer([*source.marks, *(t.prompt for t in drawn), *pieces])["input_ids"])
    marks = [ids[0] for ids in islice(encoded, len(source.marks))]
    prompts = list(islice(encoded, count))
    examples = []
    for text, prompt, of_one in zip(drawn, prompts, turns, strict=True):
        response, is_model = list[int](), list[bool]()
        for number, ids in enumerate(islice(encoded, len(of_one))):
            response += ids
            is_model += [number % 2 == 0] * len(ids)
        response.append(tokenizer.eos_token_id)
        weights = source.weigh(text, response, marks)
        own = [w if own else 0.0 for w, own in zip(weights, [*is_model, True], strict=True)]
        examples.append(Example(prompt + response, [0.0] * len(prompt) + own))
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
    answered = source if source.stop else None
    responses = greedy_responses(
        model, tokenizer, prompts, max_tokens=max_tokens, answered=answered
    )
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
    answered: SftExamples | None = None,
) -> list[list[int]]:
    """Returns response ids, eos and the env's answers included, without padding."""
    histories = [(ids, len(ids)) for ids in tokenizer(list(prompts))["input_ids"]]
    going = list(range(len(histories)))
    stop = () if answered is None else tuple(answered.stop)
    while going:
        goes_on = []
        for start in range(0, len(going), _GENERATION_BATCH):
            rows = going[start : start + _GENERATION_BATCH]
            left = max_tokens - min(len(histories[i][0]) - histories[i][1] for i in rows)
            asked = [histories[i][0] for i in rows]
            turns = _greedy_turns(model, tokenizer, asked, max_tokens=left, stop=stop)
            for i, turn in zip(rows, turns, strict=True):
                (ids, num_prompt), said = histories[i], None
                ids = (ids + turn)[: num_prompt + max_tokens]
                if answered is not None and turn[-1] != tokenizer.eos_token_id:
                    text = tokenizer.decode(ids[num_prompt:], skip_special_tokens=True)
                    said = answered.answer(str(text))
                words = [] if said is None else tokenizer.encode(said, add_special_tokens=False)
                if words and len(ids) + len(words) < num_prompt + max_tokens:
                    goes_on.append(i)
                    ids = ids + words
                histories[i] = ids, num_prompt
        going = goes_on
    return [ids[num_prompt:] for ids, num_prompt in histories]


def _greedy_turns(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    stop: Sequence[str],
) -> list[list[int]]:
    """Returns what the model goes on with, up to and with eos or a text of `stop`."""
    batch: Any = tokenizer.pad(
        {"input_ids": [list(prompt) for prompt in prompts]},
        return_tensors="pt",
        padding_side="left",
    )
    stops = {"stop_strings": list(stop), "tokenizer": tokenizer} if stop else {}
    output = model.generate(**batch, max_new_tokens=max_tokens, do_sample=False, **stops)
    turns = []
    for row in output[:, batch["input_ids"].shape[1] :].tolist():
        end = row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
        while stop and end > 1 and row[end - 1] == tokenizer.pad_token_id:
            end -= 1  # behind a text of `stop`
        turns.append(row[:end])
    return turns
