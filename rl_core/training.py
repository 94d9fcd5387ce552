"""A training process: connects inputs, Ray's workers, trackers and saves to the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.checkpoints.manifest import RESUME_FOLDER
from rl_core.checkpoints.store import Checkpoint
from rl_core.config.run import RunConfig
from rl_core.data.dataset import difficulty_classes, read_problems
from rl_core.data.prompts import load_tokenizer, prompted, text_codec
from rl_core.data.readers import SPLITS
from rl_core.data.sampling import Curriculum, Place, ProblemOrder, read_place
from rl_core.data.tool_form import tool_form
from rl_core.resources.token_budgets import log_out_of_memory
from rl_core.rewards.scoring import Rewards, start_rewards
from rl_core.runs.resume import check_same_code, check_same_model, checkpoint_to_resume
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.teacher import with_teacher
from rl_core.system.log_file import Log
from rl_core.system.signals import StopAsked, StopSignals
from rl_core.tracking.host_memory import HostMemory
from rl_core.tracking.observers import BudgetLimit, OnStep, StepObserver
from rl_core.tracking.tensorboard_tracker import TensorBoardTracker
from rl_core.tracking.wandb_tracker import wandb_tracking
from rl_core.trainer import Trainer, TrainInputs

if TYPE_CHECKING:
    from rl_core.workers.cluster import Workers
    from rl_core.workers.engines import Engines

StartWorkers: TypeAlias = "Callable[[RunConfig, Path | None, int], AbstractContextManager[Workers]]"
"""Starts learner and engines with these settings, from a checkpoint's folder, or the base model's,
after a step."""


def load_inputs(config: RunConfig, data: Path, model_path: Path) -> TrainInputs:
    """Returns both splits, tokenized; ValueError if the model's folder has no fitting tokenizer."""
    tokenizer = load_tokenizer(str(model_path))
    chat = config.env.chat_template
    train, test = (
        prompted(read_problems(data / f"{name}.parquet"), tokenizer, chat_template=chat)
        for name in SPLITS
    )
    return TrainInputs(train, test, *text_codec(tokenizer), tool_form(tokenizer, chat))


def train_model(
    config: RunConfig,
    run: RunFolder,
    *,
    data: Path,
    model_path: Path,
    on_step: OnStep,
    logger: Log,
    on_progress: Callable[[str], None] = lambda phase: None,
    when_done: Callable[[Engines], None] = lambda engines: None,
    rewards: Rewards | None = None,
    start_workers: StartWorkers | None = None,
) -> int:
    """Trains, from the run's latest checkpoint if it has one, and returns the last step done.

    Logs past the checkpoint are cut before training goes on. `data` is the folder of the data set,
    `model_path` that of the base model, also the reference policy. For `on_progress` see
    `Workers.start`. `when_done` gets the engines after the last step and its save; a stop ends it.
    `rewards` scores instead of the settings' rule, `start_workers` instead of starting Ray's.

    Raises:
        ValueError: there are too few problems for one batch, `env.reward` names no function, no
            checkpoint of the run is sound, or the run began as another model.
        OutOfMemory: a phase did not fit; the latest checkpoint stays valid.
        WorkerDied: the learner or an engine was killed.
    """
    inputs = load_inputs(config, data, model_path)
    checkpoint = checkpoint_to_resume(run, logger.warning)
    start_step = checkpoint.step if checkpoint else 0
    order = _problem_order(config, len(inputs.train), start_step, checkpoint, logger)
    last_step = order.last_step(
        total_epochs=config.trainer.total_epochs, total_steps=config.trainer.total_steps
    )
    if checkpoint is not None and start_step >= last_step:
        logger.info("training was already finished at step %d", start_step)
        return start_step
    if checkpoint is not None:
        check_same_model(run, checkpoint.path, model_path)
    check_same_code(run, config, goes_on=checkpoint is not None)
    named = config.teacher.path
    known = run.read().teacher if checkpoint else {}
    config = with_teacher(config, model_path, logger.warning, known)
    if named is not None:
        run.update(teacher={named: str(config.teacher.path)})
    run.cut_after(start_step)
    budget = BudgetLimit(config.budget, run)
    if not budget.allows_a_step():
        _say_stopped(run, budget, start_step, logger)
        return start_step
    logger.info(
        "training goes on after step %d" if checkpoint else "training starts (step %d)", start_step
    )
    resume_from = checkpoint.path if checkpoint else None
    curriculum = load_curriculum(config, data, start_step, resume_from)

    def start_in_ray(
        config: RunConfig, resume_from: Path | None, policy_version: int
    ) -> AbstractContextManager[Workers]:
        from rl_core.workers.cluster import Workers

        return Workers.start(
            config,
            model_path,
            resume_from=resume_from,
            policy_version=policy_version,
            log_folder=run.path / "workers",
            report=logger.info,
            on_progress=on_progress,
        )

    with (
        HostMemory(config, run) as host_memory,
        start_rewards(config.env, config.reward)
        if rewards is None
        else nullcontext(rewards) as scorer,
        wandb_tracking(config, run.path),
        TensorBoardTracker(config, run.path, start_step) as tensorboard,
        (start_workers or start_in_ray)(config, resume_from, start_step) as workers,
        StopSignals(config.trainer.stop_grace_s) as signals,
    ):
        observers = (
            StepObserver(on_step=lambda step, _, metrics: log_out_of_memory(step, metrics)),
            StepObserver(measure=lambda: {"disk/free_gib": run.free_gib()}),
            StepObserver(measure=host_memory.measure),
            StepObserver(wants_stop=budget.wants_stop, on_step=budget.on_step),
            StepObserver(wants_stop=signals.requested),
            StepObserver(on_step=on_step),
            StepObserver(on_step=tensorboard.on_step),
        )
        with _saves(config, run, workers, order, curriculum) as saves:
            last_done = Trainer(
                config,
                inputs,
                workers,
                scorer,
                run,
                saves,
                order,
                observers,
                curriculum,
                signals.interruptible,
            ).train(start_step)
        if last_done == last_step:
            with suppress(StopAsked), signals.interruptible():
                when_done(workers.engines)
    if last_done < last_step:
        _say_stopped(run, budget, last_done, logger)
    if saves.trouble is not None:
        run.note(saves.trouble)
    return last_done


def load_curriculum(
    config: RunConfig, data: Path, step: int, checkpoint: Path | None
) -> Curriculum | None:
    """Returns what chooses the problems after a step, restored from that step's checkpoint.

    ValueError if the checkpoint's curriculum is of other problems.
    """
    if config.data.curriculum is None:
        return None
    return Curriculum(
        difficulty_classes(config.env, data / "train.parquet"),
        seed=config.seed,
        batch_size=config.data.train_batch_size,
        group_size=config.algorithm.group_size,
        ahead=config.rollout.staleness,
        step=step,
        checkpoint=checkpoint / RESUME_FOLDER if checkpoint else None,
    )


def _problem_order(
    config: RunConfig, num_problems: int, step: int, checkpoint: Checkpoint | None, logger: Log
) -> ProblemOrder:
    """Returns the order of the problems after a checkpoint; warns if data or seed have changed."""
    folder = checkpoint.path / RESUME_FOLDER if checkpoint else None
    place = read_place(config, num_problems, folder)
    if place.num_problems != num_problems:
        logger.warning(
            "the data set has %d problems, and had %d when the checkpoint was saved: pass %d over "
            "it begins anew",
            num_problems,
            place.num_problems,
            place.epoch + 1,
        )
        place = Place(place.seed, num_problems, step, place.epoch)
    if place.seed != config.seed:
        logger.warning(
            "seed=%d changes the responses of a run that goes on, not the order of its problems: "
            "that stays the one of seed=%d",
            config.seed,
            place.seed,
        )
    return ProblemOrder(place, config.data.train_batch_size)


def _saves(
    config: RunConfig,
    run: RunFolder,
    workers: Workers,
    order: ProblemOrder,
    curriculum: Curriculum | None,
) -> BackgroundSave:
    def write(folder: Path) -> None:
        workers.write_snapshot(folder)
        order.save(folder / RESUME_FOLDER)
        if curriculum is not None:
            curriculum.save(folder / RESUME_FOLDER)

    return BackgroundSave(
        config.checkpoints,
        run.path,
        workers.snapshot,
        write,
        min_free_bytes=int(config.storage.min_free_gib * 2**30),
        after_save=partial(run.rollouts.age_out, config.storage.rollout_quota_bytes),
    )


def _say_stopped(run: RunFolder, budget: BudgetLimit, step: int, logger: Log) -> None:
    if (reason := budget.reason(step)) is None or budget.limit is None:
        return
    logger.warning("%s", reason)
    run.note(reason)
    following = None
    if run.read().night is None:  # a night has its hours on purpose: the next one is another run
        larger = budget.limit.partition("=")[0]
        following = f"the same command with a larger {larger} continues from step {step}"
    run.update(stopped_by=budget.limit, next_step=following)
