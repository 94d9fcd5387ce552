"""The home-made base model: a small Qwen2 fitted to the examples of its env, data path stage 0.

Not the trainer: it makes, once, what `model.path` otherwise names. Examples are of mixed quality:
they calculate well but mostly give up early, which is what reinforcement learning finds to improve.

Legend: B responses, L prompt + response (right-padded), V vocabulary.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rl_core.config.base_model import BaseModelConfig
from rl_core.envs.sft_examples import SftExamples
from rl_core.sft.examples import Example, draw_examples, measure
from rl_core.sft.muon import Muon
from rl_core.sft.tokenizer import train_tokenizer
from rl_core.system.atomic import new_folder
from rl_core.system.threads import MicroBatchThreads

REPORT_NAME: Final = "warm_start.json"

_ADAMW_LR_SHARE: Final = 0.15
_MICRO_BATCHES: Final = 4
_GRAD_CLIP: Final = 1.0
_INITIALIZER_RANGE: Final = 0.06
_PADDING_WEIGHT: Final = 0.0


@dataclass(frozen=True, slots=True)
class WarmStartReport:
    """What the warm start made.

    Attributes:
        num_parameters: Weights of the model, tied embeddings counted once.
        vocab_size: Tokens of the tokenizer.
        seconds: Wall time of everything, gates included.
        final_loss: Mean training loss of the last twentieth of the steps, in nats per token.
        measured: What was measured of greedy responses to held-out problems.
        failed_gates: One sentence per gate missed; empty if all is well.
    """

    num_parameters: int
    vocab_size: int
    seconds: float
    final_loss: float
    measured: dict[str, float]
    failed_gates: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns one flat object: `measured` stands between the other fields."""
        return {
            "num_parameters": self.num_parameters,
            "vocab_size": self.vocab_size,
            "seconds": self.seconds,
            "final_loss": self.final_loss,
            **self.measured,
            "failed_gates": self.failed_gates,
        }


def make_base_model(
    settings: BaseModelConfig,
    source: SftExamples,
    *,
    folder: Path,
    on_step: Callable[[int, int, float], None],
) -> WarmStartReport:
    """Trains tokenizer and model, measures the gates and writes a Hugging Face folder.

    The same arguments give the same weights on one machine. Torch's global random state and thread
    count are left as they were.

    Args:
        settings: Size, steps and learning rate.
        source: The env's texts, and its gates.
        folder: Where the model goes, whole or not at all.
        on_step: Called after each step with (steps done, steps in all, loss).

    Returns:
        The measured gates, as also written to `warm_start.json`.
    """
    started = time.monotonic()
    with _own_torch_state(settings):
        rng = random.Random(settings.seed)
        tokenizer = train_tokenizer(
            source.tokenizer_texts(rng),
            vocab_size=settings.vocab_size,
            digits_per_token=source.digits_per_token,
        )
        model = _new_model(settings, tokenizer)
        final_loss = _fit(model, tokenizer, settings, source, rng, on_step)
        measured, failed = measure(
            source, model, tokenizer, max_tokens=settings.max_response_tokens
        )
        report = WarmStartReport(
            num_parameters=sum(parameter.numel() for parameter in model.parameters()),
            vocab_size=len(tokenizer),
            seconds=round(time.monotonic() - started, 1),
            final_loss=final_loss,
            measured=measured,
            failed_gates=failed,
        )
        with new_folder(folder) as temporary:
            model.save_pretrained(temporary)
            tokenizer.save_pretrained(temporary)
            text = json.dumps(report.as_json(), indent=2)
            (temporary / REPORT_NAME).write_text(f"{text}\n")
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
    source: SftExamples,
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
        examples = draw_examples(source, tokenizer, settings.batch_size, rng)
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


def _backward(
    model: Qwen2ForCausalLM,
    examples: Sequence[Example],
    pad_id: int,
    threads: MicroBatchThreads,
) -> float:
    """Adds the gradient of the weighted mean loss; the batch is cut by length to save padding."""
    by_length = sorted(examples, key=lambda example: len(example.ids), reverse=True)
    size = math.ceil(len(by_length) / _MICRO_BATCHES)
    parts = [by_length[start : start + size] for start in range(0, len(by_length), size)]
    total = sum(sum(example.weights) for example in examples)

    def micro_loss(part: Sequence[Example]) -> tuple[Tensor, float]:
        ids, weights = _pad(part, pad_id)
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1]
        learned = weights[:, 1:] > 0
        losses = functional.cross_entropy(
            model.lm_head(hidden[learned]), ids[:, 1:][learned], reduction="none"
        )
        loss = (losses * weights[:, 1:][learned]).sum() / total
        return loss, loss.item()

    return sum(threads.accumulate(list(model.parameters()), micro_loss, parts))


def _pad(examples: Sequence[Example], pad_id: int) -> tuple[Tensor, Tensor]:
    """Returns ids int64 [B, L] and loss weights float32 [B, L], right-padded."""
    length = max(len(example.ids) for example in examples)
    ids = torch.tensor([e.ids + [pad_id] * (length - len(e.ids)) for e in examples])
    weights = torch.tensor(
        [e.weights + [_PADDING_WEIGHT] * (length - len(e.weights)) for e in examples]
    )
    return ids, weights
