"""Supervised fine-tuning of a given model: from `model.path` to a folder that RL starts from.

Data path stage 0.
"""

import gc
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import torch
import transformers

from rl_core.config.run import RunConfig
from rl_core.data.prompts import check_embedded, load_tokenizer
from rl_core.errors import OutOfMemory, allocation_in_words, is_out_of_memory
from rl_core.models.loading import checkpoint_gradients, complete_weights, load_actor
from rl_core.models.lora import add_adapters, hold_frozen_in_bfloat16
from rl_core.models.packing import allow_packing
from rl_core.models.saving import save_actor
from rl_core.sft.fit import Example, Fitting, MicroBatches, split_by_tokens
from rl_core.sft.named_data import CURVE_NAME, REPORT_NAME
from rl_core.sft.sources import SftSource, sft_source
from rl_core.system.atomic import disk_errors_as_os_errors, is_disk_full, new_folder, remove_folder
from rl_core.system.log_file import Log
from rl_core.system.threads import MicroBatchThreads

_RISEN: Final = 1.02
"""If the held-out loss ends above this multiple of its lowest, fewer steps would be better."""
_PROGRESS: Final = "progress.pt"
Row = dict[str, float]
"""A point of the curve: `step`, `loss`, and `held_out_loss` if it was measured."""


def tune_model(
    config: RunConfig,
    *,
    model_path: Path,
    data: Path,
    folder: Path,
    on_step: Callable[[int, int, Row], None],
    logger: Log,
) -> None:
    """Fine-tunes a model and writes it as a folder that transformers and vLLM load as it is.

    The folder appears whole or not at all. If a call is killed, the next one with the same
    folder continues from its last save and gets the same result. `on_step` is called
    with (steps done, steps in all, the curve's row). ValueError for a model that cannot be loaded,
    or rows that cannot be learned from; OutOfMemory if a single example does not fit.
    """
    tokenizer = load_tokenizer(str(model_path))
    source = sft_source(config, tokenizer, data)
    check_embedded((example.ids for example in source.held_out), tokenizer)
    tuning = _Tuning(config, model_path, source, tokenizer.pad_token_id or 0, logger)
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    curve = tuning.run(unfinished, on_step)
    held_out = [row["held_out_loss"] for row in curve if "held_out_loss" in row]
    report = {
        "model": str(config.model.path),
        "data": source.what,
        "lora_rank": tuning.lora_rank,
        "steps": source.num_steps,
        "held_out_examples": len(source.held_out),
        "held_out_loss_before": round(held_out[0], 4),  # means in nats per response token
        "held_out_loss_after": round(held_out[-1], 4),
        "failed_gates": _failed_gates(held_out),
    }
    with new_folder(folder) as temporary:
        model = tuning.fitting.model
        save_actor(model, complete_weights(model), model_path, temporary)
        (temporary / CURVE_NAME).write_text("".join(f"{json.dumps(row)}\n" for row in curve))
        (temporary / REPORT_NAME).write_text(f"{json.dumps(report, indent=2)}\n")
    if unfinished.exists():
        remove_folder(unfinished)


class _Tuning:
    """A model and its optimizer, with the learner's settings for less memory."""

    def __init__(
        self, config: RunConfig, model_path: Path, source: SftSource, pad_id: int, logger: Log
    ) -> None:
        torch.manual_seed(config.sft.seed)
        self._config = config
        self._source = source
        self._logger = logger
        device = torch.device("cuda" if config.resources.learner_gpus else "cpu")
        rank = config.sft.lora_rank
        self.lora_rank = config.model.lora_rank if rank is None else rank
        self._threads = config.resources.learner_threads if device.type == "cpu" else 1
        self.fitting = Fitting(
            _prepared(config, model_path, self.lora_rank, device),
            pad_id,
            MicroBatchThreads(self._threads),
            getattr(torch, config.compute_dtype),
        )
        self._optimizer = torch.optim.AdamW(
            self.fitting.parameters, lr=config.sft.lr, weight_decay=0.0, fused=True
        )
        self._max_tokens = config.actor.micro_batch_tokens

    def run(self, unfinished: Path, on_step: Callable[[int, int, Row], None]) -> list[Row]:
        """Trains, from an earlier call's last save if there is one; returns the curve."""
        source = self._source
        curve = self._load(unfinished)
        first = int(curve[-1]["step"]) if curve else 0
        begins = f"continues after step {first}" if curve else "starts"
        self._logger.info("SFT %s: %d steps on %s", begins, source.num_steps, source.what)
        backward = partial(self._until_it_fits, self.fitting.backward)
        held_out_loss = partial(self._until_it_fits, self.fitting.mean_loss, source.held_out)
        if not curve:
            curve.append({"step": 0, "held_out_loss": held_out_loss()})
        for step, loss in self.fitting.fit(
            lambda step: backward(source.draw(step)),
            self._update,
            steps=range(first, source.num_steps),
            warmup_steps=self._config.sft.warmup_steps,
        ):
            row = {"step": float(step), "loss": loss}
            is_saving = step % self._config.sft.save_freq == 0
            if step == source.num_steps or is_saving:
                row["held_out_loss"] = held_out_loss()
            curve.append(row)
            if step != source.num_steps and is_saving:
                self._save(unfinished, curve)
            on_step(step, source.num_steps, row)
        return curve

    def _update(self, share: float) -> None:
        self._optimizer.param_groups[0]["lr"] = self._config.sft.lr * share
        self._optimizer.step()

    def _until_it_fits(
        self, work: Callable[[Sequence[Example], MicroBatches], float], examples: Sequence[Example]
    ) -> float:
        """Returns `work` of the examples; halves the micro-batches each time memory runs out."""
        while True:
            batches = split_by_tokens(examples, max_tokens=self._max_tokens, threads=self._threads)
            try:
                return work(examples, batches)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                reason = allocation_in_words(error)
            self.fitting.model.zero_grad()
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            if all(len(batch) == 1 for batch in batches):
                longest = max(len(example.ids) for example in examples)
                raise OutOfMemory(
                    "sft",
                    f"{reason.rstrip('.')}. One example, of at most {longest} tokens, does not "
                    "fit: model.gradient_checkpointing=true, model.dtype=bfloat16 or "
                    "sft.lora_rank=16 take less",
                )
            self._max_tokens //= 2
            self._logger.warning("SFT ran out of memory: micro-batches of %d now", self._max_tokens)

    def _save(self, folder: Path, curve: list[Row]) -> None:
        """Writes the state from which a killed SFT continues, whole or not at all."""
        model = self.fitting.model
        learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
        progress = {"weights": learned, "optimizer": self._optimizer.state_dict(), "curve": curve}
        try:
            with disk_errors_as_os_errors(folder.parent), new_folder(folder) as temporary:
                torch.save(progress, temporary / _PROGRESS)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self._logger.warning("the disk is full, so a killed SFT would begin again: %s", error)

    def _load(self, folder: Path) -> list[Row]:
        """Restores what `_save` wrote and returns the curve; empty if nothing was saved."""
        if not (folder / _PROGRESS).is_file():
            return []
        progress = torch.load(folder / _PROGRESS, map_location="cpu", weights_only=True)
        self.fitting.model.load_state_dict(progress["weights"], strict=False)
        self._optimizer.load_state_dict(progress["optimizer"])
        return list(progress["curve"])


def _prepared(
    config: RunConfig, path: Path, lora_rank: int, device: torch.device
) -> transformers.PreTrainedModel:
    model = load_actor(path, device)
    allow_packing(model)  # packs rows on a card, where in float32 it also repeats keys
    if lora_rank:
        model.requires_grad_(False)
        add_adapters(model, rank=lora_rank, alpha=config.model.lora_alpha)
        if config.compute_dtype == "bfloat16":
            hold_frozen_in_bfloat16(model)
    if config.model.gradient_checkpointing:
        checkpoint_gradients(model)
    return model


def _failed_gates(held_out_losses: Sequence[float]) -> list[str]:
    before = held_out_losses[0]
    after = held_out_losses[-1]
    lowest = min(held_out_losses)
    if after >= before:
        return [f"held-out loss was {before:.3f} before and is {after:.3f}: it learned nothing"]
    if after > _RISEN * lowest:
        return [
            f"held-out loss is {after:.3f} and was {lowest:.3f}: fewer steps, or more rows, "
            "would be better"
        ]
    return []
