"""What the watched child process calls to fine-tune a model: Prefect is not loaded there."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.config.run import RunConfig
from rl_core.sft.tune import tune_model
from tasks.supervision.worker_logs import TRAINER_LOGGER

if TYPE_CHECKING:
    from tasks.supervision.child import Reporter


def tune_for_parent(
    reporter: Reporter, *, config: RunConfig, model_path: Path, data: Path, folder: Path
) -> None:
    """Fine-tunes as `tune_model` does, telling the parent of each step."""
    reporter.progress("sft")
    tune_model(
        config,
        model_path=model_path,
        data=data,
        folder=folder,
        on_step=reporter.step,
        logger=logging.getLogger(TRAINER_LOGGER),
    )
