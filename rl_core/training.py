"""A training process, wired: inputs, Ray's workers, trackers and saves around the loop.

Neither Prefect nor a parent process is known here: whoever calls hears of steps by functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.config.run import RunConfig
from rl_core.data.dataset import read_problems
from rl_core.data.prompts import encode_prompt, load_tokenizer
from rl_core.data.sampling import total_steps
from rl_core.resources.cost import Spending
from rl_core.rewards.scoring import start_rewards
from rl_core.runs.resume import checkpoint_to_resume
from rl_core.runs.run_folder import RunFolder
from rl_core.system.log_file import Log
from rl_core.system.signals import StopSignals
from rl_core.tracking.host_memory import HostMemory
from rl_core.tracking.tensorboard_tracker import TensorBoardTracker
from rl_core.tracking.wandb_run_id import copy_wandb_run_id
from rl_core.tracking.wandb_tracker import WandbTracker
from rl_core.trainer import TrainInputs, train
from rl_core.types import Problem, PromptedProblem
from rl_core.workers.cluster import Workers


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
    on_progress: Callable[[str], None] = lambda phase: None,
) -> int:
    """Trains, from the run's latest checkpoint where it has one, and returns the last step done.

    Args:
        config: the run's settings.
        run: the run's folder; logs past the checkpoint are cut before training goes on.
        data: folder of the data set.
        model_path: folder of the base model, also the reference policy.
        on_step: called with (step, last step, metrics).
        logger: hears where training starts from.
        on_progress: see `Workers.start`.

    Raises:
        ValueError: there are too few problems for one batch, `env.reward` names no function, or
            no checkpoint of the run is sound.
        OutOfMemory: a phase did not fit; the latest checkpoint stands.
        WorkerDied: the learner or an engine was killed.
    """
    inputs = load_inputs(config, data, model_path)
    last_step = total_steps(config, len(inputs.train))
    checkpoint = checkpoint_to_resume(run, logger.warning)
    start_step = checkpoint.step if checkpoint else 0
    if checkpoint is not None and start_step >= last_step:
        logger.info("training was already finished at step %d", start_step)
        return start_step
    run.cut_after(start_step)
    spending = Spending(config.budget, run.metrics.values("timing_s/step"))
    if (limit := spending.limit_within(1)) is not None:
        _say_stopped(run, limit, start_step, spending, logger)
        return start_step
    logger.info(
        "training goes on after step %d" if checkpoint else "training starts (step %d)", start_step
    )
    resume_from = checkpoint.path if checkpoint else None
    with (
        HostMemory(config, run) as host_memory,
        start_rewards(config.env) as rewards,
        WandbTracker(config, run.path, resume_from),
        TensorBoardTracker(config, run.path, start_step) as tensorboard,
        Workers.start(
            config,
            model_path,
            resume_from=resume_from,
            log_folder=run.path / "workers",
            report=logger.info,
            on_progress=on_progress,
        ) as workers,
        StopSignals() as stop,
        BackgroundSave(
            config.checkpoints,
            run.path,
            workers,
            min_free_bytes=int(config.storage.min_free_gib * 2**30),
            add_state=partial(copy_wandb_run_id, run.path),
            after_save=partial(tidy_rollouts, run, config.storage.rollout_quota_bytes),
        ) as saves,
    ):

        def tell(step: int, last_step: int, metrics: dict[str, float]) -> None:
            spending.add_step(metrics.get("timing_s/step", 0.0))
            on_step(step, last_step, metrics)
            tensorboard.on_step(step, last_step, metrics)

        def should_stop() -> bool:
            nonlocal limit
            limit = spending.limit_within(2)  # asked in a step that is not counted yet
            return limit is not None or stop.requested()

        last_done = train(
            config,
            inputs,
            workers=workers,
            rewards=rewards,
            run=run,
            saves=saves,
            start_step=start_step,
            on_step=tell,
            should_stop=should_stop,
            look_at_host=host_memory.metrics,
        )
    if limit is not None and last_done < total_steps(config, len(inputs.train)):
        _say_stopped(run, limit, last_done, spending, logger)
    if saves.trouble is not None:
        run.note(saves.trouble)
    return last_done


def tidy_rollouts(run: RunFolder, quota_bytes: int) -> None:
    """Joins the rollout files of past steps, and deletes the oldest beyond the quota."""
    run.rollouts.compact()
    run.rollouts.age_out(quota_bytes)


def _say_stopped(run: RunFolder, limit: str, step: int, spending: Spending, logger: Log) -> None:
    reason = f"{limit} allows no step after {step} ({spending}): training stopped there"
    logger.warning("%s", reason)
    run.note(reason)
