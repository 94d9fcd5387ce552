"""What the watched child process calls to train and to fine-tune: Prefect is not loaded there."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.config.run import RunConfig
from rl_core.runs.lock import training
from rl_core.runs.run_folder import RunFolder
from rl_core.system.process_env import importing, without_torch
from rl_core.system.signals import LEAVING_S
from rl_core.system.waits import OF_TRAINING, Waits
from rl_core.workers.kept import KeptEngines
from tasks.supervision.worker_logs import TRAINER_LOGGER

if TYPE_CHECKING:
    from tasks.supervision.child import Reporter


@dataclass(frozen=True)
class Start:
    """How an attempt begins and ends."""

    evaluates: bool
    """`ask_trained` follows."""
    keeps: bool
    """If only the learner fails, the engines wait in this process for the next attempt."""
    before: dict[str, float]
    """Seconds of the start by phase, until `called_at`."""
    called_at: float
    """By `time.time`."""


def train_for_parent(
    reporter: Reporter,
    *,
    config: RunConfig,
    run: RunFolder,
    data: Path,
    model_path: Path,
    start: Start,
) -> int:
    """Trains by `Training`, in a watched process."""
    # Other trainers merge an adapter, unpack a teacher's file or run a user's code.
    loads_no_model = not config.model.lora_rank and config.teacher.path is None
    is_ours = type(config.env).__module__.startswith("rl_core.")
    with importing(), without_torch() if loads_no_model and is_ours else nullcontext():
        from rl_core.evaluator import ask_trained
        from rl_core.training import Training

    before = start.before | {"trainer": time.time() - start.called_at}
    reporter.kept = reporter.kept or KeptEngines(keeps=start.keeps)
    work = Training(
        config,
        run,
        data=data,
        model_path=model_path,
        on_step=reporter.step,
        logger=logging.getLogger(TRAINER_LOGGER),
        waits=Waits(run.path / OF_TRAINING, reporter.progress, before),
        when_done=partial(ask_trained, config, run, data, model_path)
        if start.evaluates
        else lambda engines: None,
        kept=reporter.kept,
    )
    with training(run, wait_s=config.trainer.stop_grace_s + LEAVING_S):
        return work.train()


def tune_for_parent(
    reporter: Reporter, *, config: RunConfig, model_path: Path, data: Path, folder: Path
) -> None:
    """Fine-tunes like `tune_model`, and sends each step to the parent."""
    from rl_core.sft.tune import tune_model

    reporter.progress("sft")
    tune_model(
        config,
        model_path=model_path,
        data=data,
        folder=folder,
        on_step=reporter.step,
        logger=logging.getLogger(TRAINER_LOGGER),
    )
