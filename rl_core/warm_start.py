"""The home-made base model: a small Qwen2 fitted to search traces, data path stage 0.

Not the trainer: it makes, once, what `model.path` otherwise names. The corpus is of mixed quality:
it searches and calculates well but mostly gives up early, which is what reinforcement learning
finds to improve.

Legend: B responses, L prompt + response (right-padded), V vocabulary.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rl_core.atomic import new_folder
from rl_core.base_gates import (
    NumbersAndTarget,
    PromptRenderer,
    failed_gates,
    measure_gates,
)
from rl_core.base_tokenizer import train_tokenizer
from rl_core.config import BaseModelConfig
from rl_core.muon import Muon
from rl_core.search_traces import ANSWER_OPEN, VERDICTS, Trace, check_problem, write_trace
from rl_core.threads import MicroBatchThreads

REPORT_NAME: Final = "warm_start.json"

_CORPUS_GIVE_UP_PROB: Final = 0.1
"""Giving up is rarer in the traces than in the model: weights on the choice make up for it, so that
deep searches, which are rare at `give_up_prob`, are still seen often."""
_VERDICT_WEIGHT: Final = 3.0
"""Judging is what is learned last, from one token in eight."""
_ADAMW_LR_SHARE: Final = 0.15
_TOKENIZER_TEXTS: Final = 2_000
_GATE_PROBLEMS: Final = 256
_MICRO_BATCHES: Final = 4
_GRAD_CLIP: Final = 1.0
_INITIALIZER_RANGE: Final = 0.06
_IGNORED: Final = 0.0


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """What the warm start made, measured on held-out problems with greedy decoding.

    Attributes:
        num_parameters: Weights of the model, tied embeddings counted once.
        vocab_size: Tokens of the tokenizer.
        seconds: Wall time of everything, gates included.
        final_loss: Mean training loss of the last twentieth of the steps, in nats per token.
        coverage: Share of held-out problems which a search that never gives up solves.
        format_share: Share of responses with a well-formed answer of the given numbers.
        arithmetic_share: Share of the results written that are true.
        judging_share: Share of "yes" and "no" that agree with the numbers written.
        repetition_share: Share of responses that try a number twice.
        accuracy: Share of responses that are correct.
        mean_attempts: Numbers tried per response.
        mean_verdicts: "yes" and "no" per response: how long a search lasts.
        mean_prompt_tokens: Tokens per prompt.
        mean_response_tokens: Tokens per response, end included.
        failed_gates: One sentence per gate missed; empty if all is well.
    """

    num_parameters: int
    vocab_size: int
    seconds: float
    final_loss: float
    coverage: float
    format_share: float
    arithmetic_share: float
    judging_share: float
    repetition_share: float
    accuracy: float
    mean_attempts: float
    mean_verdicts: float
    mean_prompt_tokens: float
    mean_response_tokens: float
    failed_gates: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Example:
    """Token ids of prompt and response, and the loss weight of each id."""

    ids: list[int]
    weights: list[float]


def make_base_model(
    settings: BaseModelConfig,
    *,
    prompts: Sequence[str],
    problems: Sequence[NumbersAndTarget],
    holdout: Sequence[NumbersAndTarget],
    render_prompt: PromptRenderer,
    folder: Path,
    on_step: Callable[[int, int, float], None],
) -> WarmStartReport:
    """Trains tokenizer and model, measures the gates and writes a Hugging Face folder.

    The same arguments give the same weights on one machine. Torch's global random state and thread
    count are left as they were.

    Args:
        settings: Size, steps and learning rate.
        prompts: Texts for the tokenizer beside the traces.
        problems: (numbers, target) of the train split.
        holdout: (numbers, target) of the test split: the gates are measured on the first 256.
        render_prompt: The prompt text of (numbers, target).
        folder: Where the model goes, whole or not at all.
        on_step: Called after each step with (steps done, steps in all, loss).

    Returns:
        The measured gates, as also written to `warm_start.json`.

    Raises:
        ValueError: If the problems are not of three positive numbers each, or there are none.
    """
    started = time.monotonic()
    if not problems or not holdout:
        raise ValueError(
            f"{len(problems)} train and {len(holdout)} test problems: the home-made base model "
            "needs some of both"
        )
    for numbers, target in (*problems, *holdout):
        check_problem(numbers, target)
    with _own_torch_state(settings):
        rng = random.Random(settings.seed)
        tokenizer = _fit_tokenizer(settings, prompts, problems, rng)
        model = _new_model(settings, tokenizer)
        final_loss = _fit(model, tokenizer, settings, problems, render_prompt, rng, on_step)
        gates = measure_gates(
            model,
            tokenizer,
            holdout[:_GATE_PROBLEMS],
            render_prompt,
            max_tokens=settings.max_response_tokens,
        )
        report = WarmStartReport(
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
            vocab_size=len(tokenizer),
            seconds=round(time.monotonic() - started, 1),
            final_loss=final_loss,
            failed_gates=failed_gates(gates),
            **gates,
        )
        with new_folder(folder) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            (temporary / REPORT_NAME).write_text(json.dumps(asdict(report), indent=2) + "\n")
    return report


@contextmanager
def _own_torch_state(settings: BaseModelConfig) -> Iterator[None]:
    """Seeds torch and keeps it to one thread for a while; restores both."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def _fit_tokenizer(
    settings: BaseModelConfig,
    prompts: Sequence[str],
    problems: Sequence[NumbersAndTarget],
    rng: random.Random,
) -> PreTrainedTokenizerFast:
    """Fits the tokenizer to as many traces as prompts."""
    texts = list(prompts[:_TOKENIZER_TEXTS])
    texts += [
        write_trace(*rng.choice(problems), give_up_prob=_CORPUS_GIVE_UP_PROB, rng=rng).text
        for _ in texts
    ]
    return train_tokenizer(texts, vocab_size=settings.vocab_size)


def _new_model(settings: BaseModelConfig, tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.num_layers,
        num_attention_heads=settings.num_heads,
        num_key_value_heads=settings.num_heads,
        max_position_embeddings=1024,
        # 1 / sqrt(hidden_size) and not 0.02, which is for models ten times wider.
        initializer_range=_INITIALIZER_RANGE,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        attn_implementation="sdpa",
        dtype="float32",
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def _fit(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: BaseModelConfig,
    problems: Sequence[NumbersAndTarget],
    render_prompt: PromptRenderer,
    rng: random.Random,
    on_step: Callable[[int, int, float], None],
) -> float:
    """Trains in place: Muon on the matrices, AdamW on embedding, biases and norms; a mean loss."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    held = {id(matrix) for matrix in matrices}
    muon = Muon(matrices)
    adamw = torch.optim.AdamW(
        [p for p in model.parameters() if id(p) not in held], betas=(0.9, 0.95), weight_decay=0.0
    )
    threads = MicroBatchThreads(settings.num_threads)
    losses: list[float] = []
    model.train()
    for step in range(settings.steps):
        chosen = rng.choices(problems, k=settings.batch_size)
        examples = _examples(chosen, tokenizer, render_prompt, settings.give_up_prob, rng)
        losses.append(_backward(model, examples, tokenizer.pad_token_id, threads))
        torch.nn.utils.clip_grad_norm_(model.parameters(), _GRAD_CLIP)
        lr = settings.lr * _schedule(step, settings)
        muon.step(lr=lr, threads=threads)
        adamw.param_groups[0]["lr"] = lr * _ADAMW_LR_SHARE
        adamw.step()
        model.zero_grad()
        on_step(step + 1, settings.steps, losses[-1])
    model.eval()
    tail = losses[-math.ceil(len(losses) / 20) :]
    return sum(tail) / len(tail)


def _schedule(step: int, settings: BaseModelConfig) -> float:
    """Returns the share of the learning rate: linear warm-up, then half a cosine down to 0."""
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    left = max(settings.steps - settings.warmup_steps, 1)
    return 0.5 * (1 + math.cos(math.pi * (step - settings.warmup_steps) / left))


def _examples(
    problems: Sequence[NumbersAndTarget],
    tokenizer: PreTrainedTokenizerFast,
    render_prompt: PromptRenderer,
    give_up_prob: float,
    rng: random.Random,
) -> list[_Example]:
    """Returns fresh traces as ids; prompt and response are tokenized apart, as in a rollout."""
    traces = [
        write_trace(*problem, give_up_prob=_CORPUS_GIVE_UP_PROB, rng=rng) for problem in problems
    ]
    texts = [render_prompt(*problem) for problem in problems] + [trace.text for trace in traces]
    # One call: the constants that the weights look for, the prompts, the responses.
    encoded = tokenizer([*VERDICTS, ANSWER_OPEN + "(", *texts])["input_ids"]
    [no, *_], [yes, *_], [give_up, *_], *ids = encoded
    examples = []
    for prompt, response, trace in zip(ids[: len(traces)], ids[len(traces) :], traces, strict=True):
        response.append(tokenizer.eos_token_id)
        weights = response_weights(
            response, trace, no_id=no, yes_id=yes, give_up_id=give_up, give_up_prob=give_up_prob
        )
        examples.append(_Example(prompt + response, [_IGNORED] * len(prompt) + weights))
    return examples


def response_weights(
    response: Sequence[int],
    trace: Trace,
    *,
    no_id: int,
    yes_id: int,
    give_up_id: int,
    give_up_prob: float,
) -> list[float]:
    """Returns 1 per token, 3 per verdict, and after a "no" the ratio of wanted to written odds.

    With the latter the model learns to give up with `give_up_prob`, though the traces seldom do.
    The last "no" of an exhausted search leaves no choice: weight 1.
    """
    choices = [index for index in range(1, len(response)) if response[index - 1] == no_id]
    if trace.exhausted:
        choices.pop()
    weights = [_VERDICT_WEIGHT if token in (no_id, yes_id) else 1.0 for token in response]
    for index in choices:
        gave_up = response[index] == give_up_id
        weights[index] = (
            give_up_prob / _CORPUS_GIVE_UP_PROB
            if gave_up
            else (1 - give_up_prob) / (1 - _CORPUS_GIVE_UP_PROB)
        )
    return weights


def _backward(
    model: Qwen2ForCausalLM,
    examples: Sequence[_Example],
    pad_id: int,
    threads: MicroBatchThreads,
) -> float:
    """Adds the gradient of the weighted mean loss; the batch is cut by length to save padding."""
    by_length = sorted(examples, key=lambda example: len(example.ids), reverse=True)
    size = math.ceil(len(by_length) / _MICRO_BATCHES)
    parts = [by_length[start : start + size] for start in range(0, len(by_length), size)]
    total = sum(sum(example.weights) for example in examples)

    def micro_loss(part: Sequence[_Example]) -> tuple[Tensor, float]:
        ids, weights = _pad(part, pad_id)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        learned = weights[:, 1:] > 0
        losses = functional.cross_entropy(
            model.lm_head(hidden[learned]), ids[:, 1:][learned], reduction="none"
        )
        loss = (losses * weights[:, 1:][learned]).sum() / total
        return loss, loss.item()

    return sum(threads.accumulate(list(model.parameters()), micro_loss, parts))


def _pad(examples: Sequence[_Example], pad_id: int) -> tuple[Tensor, Tensor]:
    """Returns ids int64 [B, L] and loss weights float32 [B, L], right-padded."""
    length = max(len(example.ids) for example in examples)
    ids = torch.tensor([e.ids + [pad_id] * (length - len(e.ids)) for e in examples])
    weights = torch.tensor([e.weights + [_IGNORED] * (length - len(e.weights)) for e in examples])
    return ids, weights
