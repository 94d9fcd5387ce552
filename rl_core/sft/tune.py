"""Supervised fine-tuning of a given model: from `model.path` to the folder that training starts in.

Data path stage 0. The loop is fit.py's, the examples are those of sources.py.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
import transformers

from rl_core.config.run import RunConfig
from rl_core.data.prompts import check_embedded, load_tokenizer
from rl_core.errors import OutOfMemory, allocation_in_words, is_out_of_memory
from rl_core.models.loading import checkpoint_gradients, complete_weights, load_actor
from rl_core.models.lora import add_adapters
from rl_core.models.packing import allow_packing
from rl_core.models.saving import save_actor
from rl_core.sft.examples import Example
from rl_core.sft.fit import Fitting, Split, blocked_losses, fit, split_by_tokens
from rl_core.sft.named_data import CURVE_NAME
from rl_core.sft.progress import Row, load_progress, save_progress
from rl_core.sft.sources import SftSource, sft_source
from rl_core.sft.train import REPORT_NAME
from rl_core.system.atomic import is_disk_full, new_folder, remove_folder
from rl_core.system.log_file import Log
from rl_core.system.threads import MicroBatchThreads

_RISEN: Final = 1.02
"""A held-out loss that ends so many times above its lowest says that less would have been more."""
_DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16}
OnStep = Callable[[int, int, dict[str, float]], None]


@dataclass(frozen=True)
class SftReport:
    """What SFT made of a model; losses are means in nats per response token."""

    model: str
    """As `model.path` names it."""
    data: str
    """What it learned from, in words."""
    lora_rank: int
    steps: int
    held_out_examples: int
    held_out_loss_before: float
    held_out_loss_after: float
    failed_gates: tuple[str, ...]
    """Sentences on what is not as it should be."""


def tune_model(
    config: RunConfig,
    *,
    model_path: Path,
    data: Path,
    folder: Path,
    on_step: OnStep,
    logger: Log,
) -> SftReport:
    """Fine-tunes a model and writes it as a folder that transformers and vLLM load as it lies.

    A call that was killed is taken up by the next with the same folder, from its last save, with
    the result that it would have had.

    Args:
        config: the run's settings; `sft.data` is set.
        model_path: folder of the model to start from.
        data: folder of the data set.
        folder: where the model goes, whole or not at all.
        on_step: called after each step with (steps done, steps in all, the curve's row).
        logger: hears where it starts from, and what does not fit.

    Raises:
        ValueError: for a model that cannot be loaded, or rows that cannot be learned from.
        OutOfMemory: a single example does not fit.
    """
    tokenizer = load_tokenizer(str(model_path))
    source = sft_source(config, tokenizer, data)
    check_embedded((example.ids for example in source.held_out), tokenizer)
    tuning = _Tuning(config, model_path, source, tokenizer.pad_token_id, logger)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    curve = tuning.run(unfinished, on_step)
    report = _report(config, source, tuning.lora_rank, curve)
    with new_folder(folder) as temporary:
        model = tuning.fitting.model
        save_actor(model, complete_weights(model), model_path, temporary)
        (temporary / CURVE_NAME).write_text("".join(f"{json.dumps(row)}\n" for row in curve))
        (temporary / REPORT_NAME).write_text(f"{json.dumps(asdict(report), indent=2)}\n")
    if unfinished.exists():
        remove_folder(unfinished)
    return report


class _Tuning:
    """A model and its optimizer, under the memory levers of the learner."""

    def __init__(
        self,
        config: RunConfig,
        model_path: Path,
        source: SftSource,
        pad_id: int | None,
        logger: Log,
    ) -> None:
        torch.manual_seed(config.sft.seed)
        device = torch.device("cuda" if config.resources.learner_gpus else "cpu")
        rank = config.sft.lora_rank
        self.lora_rank = config.model.lora_rank if rank is None else rank
        self._config, self._source, self._logger = config, source, logger
        dtype = _DTYPES[config.model.dtype]
        threads = config.resources.learner_threads if device.type == "cpu" else 1
        self.fitting = Fitting(
            _prepared(config, model_path, self.lora_rank, device),
            0 if pad_id is None else pad_id,
            MicroBatchThreads(threads),
            blocked_losses(dtype),
            dtype,
        )
        self._optimizer = torch.optim.AdamW(
            self.fitting.parameters, lr=config.sft.lr, weight_decay=0.0, fused=True
        )
        self._max_tokens = config.actor.micro_batch_tokens

    def run(self, unfinished: Path, on_step: OnStep) -> list[Row]:
        """Trains, from what an earlier call has left; returns the curve."""
        sft, source = self._config.sft, self._source
        curve = load_progress(unfinished, self.fitting.model, self._optimizer)
        first, last = int(curve[-1]["step"]) if curve else 0, source.num_steps
        begins = f"goes on after step {first}" if curve else "starts"
        self._logger.info("SFT %s: %d steps on %s", begins, last, source.what)
        if not curve:
            curve.append({"step": 0, "held_out_loss": self._held_out_loss()})

        def tell(step: int, loss: float) -> None:
            row = {"step": float(step), "loss": loss}
            is_last = step == last
            if is_last or step % sft.save_freq == 0:
                row["held_out_loss"] = self._held_out_loss()
            curve.append(row)
            if not is_last and step % sft.save_freq == 0:
                self._save(unfinished, curve)
            on_step(step, last, row)

        fit(
            self.fitting,
            self._update,
            draw=source.draw,
            backward=partial(self._until_it_fits, self.fitting.backward),
            steps=range(first, last),
            warmup_steps=sft.warmup_steps,
            on_step=tell,
        )
        return curve

    def _update(self, share: float) -> None:
        self._optimizer.param_groups[0]["lr"] = self._config.sft.lr * share
        self._optimizer.step()

    def _held_out_loss(self) -> float:
        return self._until_it_fits(self.fitting.mean_loss, self._source.held_out)

    def _until_it_fits(
        self, work: Callable[[Sequence[Example], Split], float], examples: Sequence[Example]
    ) -> float:
        """Returns `work` of the examples, in micro-batches of half the size where memory ran out.

        Raises:
            OutOfMemory: though every micro-batch was a single example.
        """
        while True:
            parts = split_by_tokens(examples, max_tokens=self._max_tokens)
            try:
                return work(examples, lambda _, parts=parts: parts)  # type: ignore[misc]
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                said = allocation_in_words(error)
            self.fitting.model.zero_grad()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            longest = max(len(example.ids) for example in examples)
            if all(len(part) == 1 for part in parts):
                raise OutOfMemory(
                    "sft",
                    f"{said.rstrip('.')}. One example, of at most {longest} tokens, does not fit: "
                    "model.gradient_checkpointing=true, model.dtype=bfloat16 or sft.lora_rank=16 "
                    "take less",
                )
            self._max_tokens //= 2
            self._logger.warning("SFT ran out of memory: micro-batches of %d now", self._max_tokens)

    def _save(self, folder: Path, curve: list[Row]) -> None:
        try:
            save_progress(folder, self.fitting.model, self._optimizer, curve)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._logger.warning("the disk is full, so a killed SFT would begin again: %s", error)


def _prepared(
    config: RunConfig, path: Path, lora_rank: int, device: torch.device
) -> transformers.PreTrainedModel:
    model = load_actor(path, device)
    allow_packing(model)  # rows are padded all the same; in float32 it repeats keys for a card
    if lora_rank:
        model.requires_grad_(False)
        add_adapters(model, rank=lora_rank, alpha=config.model.lora_alpha)
    if config.model.gradient_checkpointing:
        checkpoint_gradients(model)
    return model


def _report(config: RunConfig, source: SftSource, lora_rank: int, curve: list[Row]) -> SftReport:
    held_out = [row["held_out_loss"] for row in curve if "held_out_loss" in row]
    before, after, lowest = held_out[0], held_out[-1], min(held_out)
    failed = []
    if after >= before:
        failed.append(
            f"held-out loss was {before:.3f} before and is {after:.3f}: it learned nothing"
        )
    elif after > _RISEN * lowest:
        failed.append(
            f"held-out loss is {after:.3f} and was {lowest:.3f}: fewer steps, or more rows, "
            "would be better"
        )
    return SftReport(
        model=str(config.model.path),
        data=source.what,
        lora_rank=lora_rank,
        steps=source.num_steps,
        held_out_examples=len(source.held_out),
        held_out_loss_before=round(before, 4),
        held_out_loss_after=round(after, 4),
        failed_gates=tuple(failed),
    )
