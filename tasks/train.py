"""Train: Ray launches learner and rollout engines, the trainer loop runs until done or stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from prefect import task
from prefect.context import TaskRunContext
from prefect.logging import get_run_logger

from rl_core.background_save import BackgroundSave
from rl_core.checkpoints import latest
from rl_core.collection import PromptedProblem
from rl_core.config import RunConfig
from rl_core.data_order import total_steps
from rl_core.dataset import read_problems
from rl_core.prompts import encode_prompt, load_tokenizer
from rl_core.stopping import StopSignals
from rl_core.tracking import RunFolder
from rl_core.trainer import TrainInputs, train
from rl_core.types import Problem
from rl_core.wandb_tracker import WandbTracker
from rl_core.workers import Workers
from tasks.progress import Log, TrainingProgress


def load_inputs(config: RunConfig, data: Path, model_path: Path) -> TrainInputs:
    """Returns both splits with their prompts tokenized, and the tokenizer's decoder."""
    tokenizer = load_tokenizer(str(model_path))
    chat = config.env.prompt_template == "chat"

    def prompted(problems: Sequence[Problem]) -> list[PromptedProblem]:
        return [
            PromptedProblem(p, *encode_prompt(p.messages, tokenizer, chat_template=chat))
            for p in problems
        ]

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    return TrainInputs(
        train=prompted(read_problems(data / "train.parquet")),
        test=prompted(read_problems(data / "test.parquet")),
        decode=decode,
    )


def train_model(
    config: RunConfig,
    run: RunFolder,
    *,
    data: Path,
    model_path: Path,
    on_step: Callable[[int, int, dict[str, float]], None],
    logger: Log,
) -> int:
    """Trains, from the run's latest checkpoint where it has one, and returns the last step done.

    Args:
        config: the run's settings.
        run: the run's folder; logs past the checkpoint are cut before training goes on.
        data: folder of the data set.
        model_path: folder of the base model, also the reference policy.
        on_step: called with (step, last step, metrics).
        logger: hears where training starts from.

    Raises:
        OutOfMemory: a phase did not fit; the latest checkpoint stands.
        WorkerDied: the learner or an engine was killed.
    """
    inputs = load_inputs(config, data, model_path)
    checkpoint = latest(run.path)
    start_step = checkpoint.step if checkpoint else 0
    if checkpoint is not None and start_step >= total_steps(config, len(inputs.train)):
        logger.info("training was already finished at step %d", start_step)
        return start_step
    run.cut_after(start_step)
    logger.info(
        "training goes on after step %d" if checkpoint else "training starts (step %d)", start_step
    )
    resume_from = checkpoint.path if checkpoint else None
    with (
        WandbTracker(config, run.path) as wandb,
        Workers.start(
            config,
            model_path,
            resume_from=resume_from,
            log_folder=run.path / "workers",
            report=logger.info,
        ) as workers,
        StopSignals() as stop,
        BackgroundSave(
            config.checkpoints, run.path, workers.snapshot, workers.write_snapshot
        ) as saves,
    ):

        def tell(step: int, last_step: int, metrics: dict[str, float]) -> None:
            on_step(step, last_step, metrics)
            wandb.on_step(step, last_step, metrics)

        return train(
            config,
            inputs,
            workers=workers,
            run=run,
            saves=saves,
            start_step=start_step,
            on_step=tell,
            should_stop=stop.requested,
        )


@task(name="train", task_run_name="train")
def train_task(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> int:
    """Trains inside a flow run: progress artifact, retries by the flow's condition."""
    logger = get_run_logger()
    with TrainingProgress(logger, as_artifact=TaskRunContext.get() is not None) as progress:
        return train_model(
            config, run, data=data, model_path=model_path, on_step=progress.on_step, logger=logger
        )
