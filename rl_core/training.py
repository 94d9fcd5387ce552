"""A training process: connects inputs, Ray's workers, trackers and saves to the loop."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.checkpoints.manifest import RESUME_FOLDER, model_digest
from rl_core.checkpoints.store import Checkpoint, list_checkpoints
from rl_core.config.run import RunConfig
from rl_core.data.adapter_source import base_digest
from rl_core.data.dataset import difficulty_classes, read_problems
from rl_core.data.prompts import load_tokenizer, prompted, text_codec
from rl_core.data.readers import SPLITS
from rl_core.data.sampling import Curriculum, Place, ProblemOrder, read_place
from rl_core.data.tool_form import tool_form
from rl_core.resources.token_budgets import log_out_of_memory
from rl_core.rewards.scoring import NotedRewards, Rewards, start_rewards
from rl_core.runs.merging import merge_latest_and_best
from rl_core.runs.resume import (
    CALLED_REWARD,
    check_same_code,
    check_same_model,
    checkpoint_to_resume,
)
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.teacher import with_teacher
from rl_core.runs.waiting import startup_in_words
from rl_core.system.log_file import Log
from rl_core.system.signals import StopAsked, StopSignals
from rl_core.system.waits import OF_TRAINING, START, Waits
from rl_core.tracking.host_memory import HostMemory
from rl_core.tracking.observers import BudgetLimit, OnStep, StepObserver
from rl_core.tracking.tensorboard_tracker import TensorBoardTracker
from rl_core.tracking.wandb_tracker import wandb_tracking
from rl_core.trainer import Trainer, TrainInputs

if TYPE_CHECKING:
    from rl_core.workers.cluster import Workers
    from rl_core.workers.engines import Engines
    from rl_core.workers.kept import KeptEngines

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


@dataclass(frozen=True)
class Training:
    """A run's training, from its latest checkpoint if it has one, and what it is started with."""

    config: RunConfig
    run: RunFolder
    data: Path
    """The folder of the data set."""
    model_path: Path
    """The folder of the base model, also the reference policy."""
    on_step: OnStep
    logger: Log
    waits: Waits | None = None
    """Has what is not finished; by default in the run's folder."""
    when_done: Callable[[Engines], None] = lambda engines: None
    """Gets the engines after the last step and its save; a stop ends it."""
    rewards: Rewards | None = None
    """Scores instead of the settings' rule."""
    start_workers: StartWorkers | None = None
    """Starts others than Ray's."""
    kept: KeptEngines[Workers] | None = None
    """Has the engines of the attempt before, if only its learner failed."""

    def train(self) -> int:
        """Trains and returns the last step done; logs past the checkpoint are cut before that.

        Raises:
            ValueError: there are too few problems for one batch, `env.reward` names no function, no
                checkpoint of the run is sound, or the run began as another model.
            OutOfMemory: a phase did not fit; the latest checkpoint stays valid.
            WorkerDied: the learner or an engine was killed.
        """
        run = self.run
        logger = self.logger
        with (self.waits or Waits()).on(START, "inputs"):
            inputs = load_inputs(self.config, self.data, self.model_path)
        checkpoint = checkpoint_to_resume(run, logger.warning)
        start_step = checkpoint.step if checkpoint else 0
        order = _problem_order(self.config, len(inputs.train), start_step, checkpoint, logger)
        last_step = order.last_step(self.config.trainer)
        if checkpoint is not None and start_step >= last_step:
            logger.info("training was already finished at step %d", start_step)
            merge_latest_and_best(self.config, run, logger)
            return start_step
        if checkpoint is not None:
            check_same_model(run, checkpoint.path, self.model_path)
        check_same_code(run, self.config, goes_on=checkpoint is not None)
        if self.rewards is not None:
            run.update(own_code=run.read().own_code | {CALLED_REWARD: ""})
        config = with_teacher(
            self.config, self.model_path, logger.warning, run.read().teacher if checkpoint else {}
        )
        if (named := self.config.teacher.path) is not None:
            run.update(teacher={named: str(config.teacher.path)})
        run.cut_after(start_step)
        budget = BudgetLimit(config, run)
        last_done = start_step
        if budget.allows_a_step():
            last_done = replace(self, config=config)._train_after(
                checkpoint, inputs, order, last_step, budget
            )
            merge_latest_and_best(config, run, logger)
        if last_done < last_step:
            _say_stopped(run, budget, last_done, logger)
        return last_done

    def _train_after(
        self,
        checkpoint: Checkpoint | None,
        inputs: TrainInputs,
        order: ProblemOrder,
        last_step: int,
        budget: BudgetLimit,
    ) -> int:
        """Starts all that the loop needs, and returns the last step done."""
        config = self.config
        run = self.run
        start_step = checkpoint.step if checkpoint else 0
        resume_from = checkpoint.path if checkpoint else None
        begin = "training continues after step %d" if checkpoint else "training starts (step %d)"
        self.logger.info(begin, start_step)
        curriculum = load_curriculum(config, self.data, start_step, resume_from)
        waits = self.waits or Waits(run.path / OF_TRAINING)
        start_workers = self.start_workers or partial(self._start_in_ray, waits)
        with (
            waits.written(),
            HostMemory(config, run) as host_memory,
            start_rewards(config.env, config.reward)
            if self.rewards is None
            else nullcontext(self.rewards) as scorer,
            wandb_tracking(config, run.path),
            TensorBoardTracker(config, run.path, start_step) as tensorboard,
            start_workers(config, resume_from, start_step) as workers,
            StopSignals(config.trainer.stop_grace_s) as signals,
        ):
            waits.step_done(start_step)
            self.logger.info("started in %s", startup_in_words(waits.startup_s))
            run.note_startup(waits.startup_s)
            observers = (
                StepObserver(on_step=lambda step, _, metrics: log_out_of_memory(step, metrics)),
                StepObserver(measure=lambda: {"disk/free_gib": run.free_gib()}),
                StepObserver(measure=host_memory.measure),
                StepObserver(wants_stop=budget.wants_stop, on_step=budget.on_step),
                StepObserver(wants_stop=signals.requested),
                StepObserver(on_step=lambda step, *_: waits.step_done(step)),
                StepObserver(
                    on_step=lambda step, *_: (
                        run.note_startup(waits.startup_s) if step <= start_step + 1 else None
                    )
                ),
                StepObserver(on_step=self.on_step),
                StepObserver(on_step=tensorboard.on_step),
            )
            with self._saves(workers, order, curriculum, waits) as saves:
                last_done = Trainer(
                    config,
                    inputs,
                    workers,
                    NotedRewards(scorer, waits),
                    run,
                    saves,
                    order,
                    observers,
                    curriculum,
                    signals.interruptible,
                    waits,
                ).train(start_step)
            if last_done == last_step:
                with suppress(StopAsked), signals.interruptible():
                    self.when_done(workers.engines)
        if saves.trouble is not None:
            run.note(saves.trouble)
        return last_done

    def _saves(
        self, workers: Workers, order: ProblemOrder, curriculum: Curriculum | None, waits: Waits
    ) -> BackgroundSave:
        def write(folder: Path) -> None:
            workers.write_snapshot(folder)
            order.save(folder / RESUME_FOLDER)
            if curriculum is not None:
                curriculum.save(folder / RESUME_FOLDER)

        storage = self.config.storage

        def after_save() -> None:
            for checkpoint in list_checkpoints(self.run.path)[-1:]:
                self.run.receipt.note(checkpoint.step, checkpoint=model_digest(checkpoint.path))
            self.run.rollouts.age_out(storage.rollout_quota_bytes)

        return BackgroundSave(
            self.config.checkpoints,
            self.run.path,
            workers.snapshot,
            write,
            min_free_bytes=int(storage.min_free_gib * 2**30),
            after_save=after_save,
            base_sha256=base_digest(self.model_path) if self.config.model.lora_rank else None,
            waits=waits,
        )

    def _start_in_ray(
        self, waits: Waits, config: RunConfig, resume_from: Path | None, policy_version: int
    ) -> AbstractContextManager[Workers]:
        from rl_core.workers.cluster import Workers

        return Workers.start(
            config,
            self.model_path,
            resume_from=resume_from,
            policy_version=policy_version,
            log_folder=self.run.path / "workers",
            report=self.logger.info,
            waits=waits,
            kept=self.kept,
        )


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
        config,
        step=step,
        checkpoint=checkpoint / RESUME_FOLDER if checkpoint else None,
    )


def _problem_order(
    config: RunConfig, num_problems: int, step: int, checkpoint: Checkpoint | None, logger: Log
) -> ProblemOrder:
    """Returns the order of the problems after a checkpoint; warns if data or seed have changed."""
    place = read_place(
        config, num_problems, checkpoint.path / RESUME_FOLDER if checkpoint else None
    )
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
            "seed=%d changes the responses of a run that continues, not the order of its problems: "
            "that stays the one of seed=%d",
            config.seed,
            place.seed,
        )
    return ProblemOrder(place, config.data.train_batch_size)


def _say_stopped(run: RunFolder, budget: BudgetLimit, step: int, logger: Log) -> None:
    if (reason := budget.reason(step)) is None or budget.limit is None:
        return
    logger.warning("%s", reason)
    run.note(reason)
    run.update(stopped_by=budget.limit, next_step=budget.next_step(step))
