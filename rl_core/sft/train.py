"""The home-made base model: a small Qwen2 fitted to the examples of its env, data path stage 0.

Not the trainer: it makes, once, what `model.path` otherwise names. Examples are of mixed quality:
they calculate well but mostly give up early, which is what reinforcement learning finds to improve.
"""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rl_core.config.base_model import NUM_POSITIONS, BaseModelConfig
from rl_core.envs.sft_examples import SftExamples
from rl_core.sft.examples import draw_examples, measure
from rl_core.sft.fit import Fitting, fit, split_evenly, whole_losses
from rl_core.sft.muon import Muon
from rl_core.sft.tokenizer import train_tokenizer
from rl_core.system.atomic import new_folder
from rl_core.system.threads import MicroBatchThreads

REPORT_NAME: Final = "warm_start.json"

_ADAMW_LR_SHARE: Final = 0.15
_MICRO_BATCHES: Final = 4
_INITIALIZER_RANGE: Final = 0.06


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
        facts = asdict(self)
        measured, failed_gates = facts.pop("measured"), facts.pop("failed_gates")
        return {**facts, **measured, "failed_gates": failed_gates}


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
            words=source.words,
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
        max_position_embeddings=NUM_POSITIONS,
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
    fitting = Fitting(model, tokenizer.pad_token_id, threads, whole_losses)
    split = partial(split_evenly, count=_MICRO_BATCHES)
    losses: list[float] = []

    def update(share: float) -> None:
        lr = settings.lr * share
        muon.step(lr=lr, threads=threads)
        adamw.param_groups[0]["lr"] = lr * _ADAMW_LR_SHARE
        adamw.step()

    def tell(step: int, loss: float) -> None:
        losses.append(loss)
        on_step(step, settings.steps, loss)

    model.train()
    fit(
        fitting,
        update,
        draw=lambda step: draw_examples(source, tokenizer, settings.batch_size, rng),
        backward=lambda examples: fitting.backward(examples, split),
        steps=range(settings.steps),
        warmup_steps=settings.warmup_steps,
        on_step=tell,
    )
    model.eval()
    tail = losses[-math.ceil(len(losses) / 20) :]
    return sum(tail) / len(tail)
