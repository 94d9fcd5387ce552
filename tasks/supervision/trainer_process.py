"""What the watched child process calls to train and to fine-tune: Prefect is not loaded there."""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.config.run import RunConfig
from rl_core.evaluator import ask_trained
from rl_core.runs.lock import training
from rl_core.runs.run_folder import RunFolder
from rl_core.system.signals import LEAVING_S
from rl_core.system.waits import OF_TRAINING, Waits
from rl_core.training import Training
from rl_core.workers.kept import KeptEngines
from tasks.supervision.worker_logs import TRAINER_LOGGER

if TYPE_CHECKING:
    from tasks.supervision.child import Reporter


def train_for_parent(
    reporter: Reporter,
    *,
    config: RunConfig,
    run: RunFolder,
    data: Path,
    model_path: Path,
    evaluates: bool,
    keeps: bool,
    before: dict[str, float],
    called_at: float,
) -> int:
    """Trains by `Training`, in a watched process; `evaluates`: `ask_trained` follows.

    `keeps`: if only the learner fails, the engines wait in this process for the next attempt.
    `before`: seconds of the start by phase, until `called_at`, by `time.time`.
    """
    before = before | {"trainer": time.time() - called_at}
    reporter.kept = reporter.kept or KeptEngines(keeps=keeps)
    ask = partial(ask_trained, config, run, data, model_path)
    work = Training(
        config,
        run,
        data=data,
        model_path=model_path,
        on_step=reporter.step,
        logger=logging.getLogger(TRAINER_LOGGER),
        waits=Waits(run.path / OF_TRAINING, reporter.progress, before),
        when_done=ask if evaluates else lambda engines: None,
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
    files = {"model_path": model_path, "data": data, "folder": folder}
    tune_model(config, **files, on_step=reporter.step, logger=logging.getLogger(TRAINER_LOGGER))
