"""The loop: rollout -> reward -> values, advantages -> update -> sync -> test -> log -> save."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from rl_core.config.run import RunConfig
from rl_core.data.sampling import Curriculum, ProblemOrder
from rl_core.rollout.collector import Collected, Collector, read_answers, to_rollouts
from rl_core.rollout.prefetch import Clock, RolloutsAhead, staleness_metrics
from rl_core.rollout.turns import TurnTaking
from rl_core.system.seeds import seed_of
from rl_core.system.signals import StopAsked
from rl_core.system.waits import Waits
from rl_core.tracking.observers import StepObserver, all_of, per_token_ms
from rl_core.types import GenerationRequest, PromptedProblem, Rollout

if TYPE_CHECKING:
    from rl_core.checkpoints.background_save import BackgroundSave
    from rl_core.data.tool_form import ToolForm
    from rl_core.rewards.scoring import Rewards
    from rl_core.runs.run_folder import RunFolder
    from rl_core.workers.cluster import Workers

_logger = logging.getLogger(__name__)

_NORMAL_GAP = {"float32": 1e-3, "bfloat16": 0.1}
"""Nats per token: vLLM and transformers differ by 1e-6 to 3e-5, in bfloat16 by 0.01 to 0.04."""


@dataclass
class StepClock:
    """Seconds spent in each phase of a step, as `timing_s/<phase>`."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Adds the time of the block to `phase`."""
        start = time.perf_counter()
        yield
        name = f"timing_s/{phase}"
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass
class GapWatch:
    """Warns when engines and learner disagree, at most once in 100 steps."""

    dtype: str
    next_step: int = 0

    def check(self, step: int, metrics: dict[str, float]) -> None:
        """Checks a step's metrics, unless tokens are stale: these differ for another reason."""
        gap = metrics["rollout/logprob_gap_mean"]
        limit = _NORMAL_GAP[self.dtype]
        is_fresh = not metrics.get("rollout/staleness_max")
        if gap > limit and is_fresh and step >= self.next_step:
            self.next_step = step + 100
            _logger.warning(
                "step %d: rollout and learner disagree by %.2g nats per token, %s explains %.2g: "
                "an engine may hold old weights, or compute differently. Importance weights bound "
                "the harm; rollout.engine=hf tells which side is wrong",
                step,
                gap,
                self.dtype,
                limit,
            )


@dataclass(frozen=True)
class TrainInputs:
    """What the loop reads besides the settings."""

    train: Sequence[PromptedProblem]
    test: Sequence[PromptedProblem]
    decode: Callable[[Sequence[int]], str]
    encode: Callable[[str], Sequence[int]]
    tool_form: ToolForm | None = None


@dataclass(frozen=True)
class Trainer:
    """The training loop, and everything that it works with."""

    config: RunConfig
    inputs: TrainInputs
    """Problems with their prompts, and the tokenizer."""
    workers: Workers
    """The learner and the rollout engines, holding the weights of the step to start after."""
    rewards: Rewards
    """Scores responses while others are still being written."""
    run: RunFolder
    """Where metrics and rollouts are written."""
    saves: BackgroundSave
    """Writes the checkpoints of `run`; the last is written when its block is left."""
    order: ProblemOrder
    """The order of the problems and the last step, from the step that `workers` have done."""
    observers: Sequence[StepObserver] = ()
    """Called at each step: they measure, log, or stop the run."""
    curriculum: Curriculum | None = None
    """Chooses each step's problems, after the same step as `workers`; None: `order` does."""
    interruptible: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered while the loop waits for responses: in it, a stop raises `StopAsked`."""
    waits: Waits = field(default_factory=Waits)
    """Has what the loop waits for."""

    def train(self, start_step: int) -> int:
        """Trains to the end, or until an observer stops it; returns the last step done."""
        last_step = self.order.last_step(self.config.trainer)
        observers = all_of(self.observers)
        gap_watch = GapWatch(self.config.compute_dtype)
        ahead = RolloutsAhead(self._collect)
        metrics = dict[str, float]()
        clock = StepClock()
        if start_step == 0:
            try:
                with self.interruptible():
                    metrics = self.test(0) | self.workers.engines.end_step()
            except StopAsked:
                return 0
            self.run.metrics.append(0, metrics)
            observers.on_step(0, last_step, metrics)
        for step in range(start_step + 1, last_step + 1):
            is_saving = step % self.config.trainer.save_freq == 0 or step == last_step
            with clock("step"):
                try:
                    with self.interruptible():
                        collected = ahead.take(step, clock)
                except StopAsked:
                    return self._leave(step - 1, start_step, metrics)
                # Not across a checkpoint: a resume has only what the checkpoint holds.
                if self.config.rollout.staleness and not is_saving:
                    ahead.begin(step + 1)
                with self.waits.on("update", f"step {step}", "learner"):
                    learned, per_rollout = self.workers.learn(collected.rollouts, step)
                metrics = collected.metrics | learned
                gap_watch.check(step, metrics)
                with suppress(StopAsked):
                    metrics |= self._hand_over(step, step == last_step, ahead, clock)
                is_last = observers.wants_stop()
                if is_saving or is_last:
                    with clock("save_checkpoint"):
                        self.saves.snapshot()
            metrics |= clock.seconds | {"epoch": self._epoch(step)} | observers.measure()
            metrics |= per_token_ms(metrics, collected.rollouts)
            # Logs first: no checkpoint is ahead of them, and a resume cuts rows after its own.
            self._log(step, metrics, collected.rollouts, per_rollout)
            clock = StepClock()  # a save that is waited for counts in the next step
            if is_saving or is_last:
                self._write_checkpoint(step, metrics, clock)
            observers.on_step(step, last_step, metrics)
            if is_last:
                return step
        return max(start_step, last_step)

    def _hand_over(
        self, step: int, is_last: bool, ahead: RolloutsAhead, clock: Clock
    ) -> dict[str, float]:
        """Gives the engines a step's update and tests it if a test is due; returns their metrics.

        Raises StopAsked only while they still generate, before they get the update.
        """
        metrics = dict[str, float]()
        is_testing = step % self.config.trainer.test_freq == 0 or is_last
        with clock("sync"):
            # A stop must not skip a test that is due: a resume would not do it.
            may_end = ahead.is_collecting() and not is_testing
            with self.interruptible() if may_end else nullcontext():
                ahead.finish()
            self.workers.sync_weights(step)
        if is_testing:
            with clock("testing"):
                metrics = self.test(step)
        return metrics | self.workers.engines.end_step()

    def _leave(self, step: int, start_step: int, metrics: Mapping[str, float]) -> int:
        """Saves the state after `step`, unless that is saved already, and returns the step."""
        if step > start_step and step % self.config.trainer.save_freq:
            self.saves.snapshot()
            self._write_checkpoint(step, metrics, StepClock())
        return step

    def _write_checkpoint(self, step: int, metrics: Mapping[str, float], clock: Clock) -> None:
        if self.config.checkpoints.in_background:
            clock = StepClock()  # the step does not wait
        with clock("step"), clock("save_checkpoint"):
            self.order.hold(step)
            if self.curriculum is not None:
                self.curriculum.hold(step)
            self.saves.write(step, metrics.get("val/accuracy"), metrics.get("val/score"))

    def _log(
        self,
        step: int,
        metrics: Mapping[str, float],
        rollouts: Sequence[Rollout],
        per_rollout: Mapping[str, Sequence[float]],
    ) -> None:
        file = self.run.rollouts.write(step, self._epoch(step), rollouts, per_rollout)
        self.run.metrics.append(step, metrics)
        self.run.receipt.note(step, rollouts=file, weights=self.workers.held_weights())

    def _epoch(self, step: int) -> int:
        return self.order.before(step).epoch

    def _collect(self, step: int, clock: Clock) -> Collected:
        """Returns the rollouts of a step's problems; must be called for the steps in order."""
        chooser = self.curriculum or self.order
        collector = Collector(
            self.config, self.inputs.train, self.workers.engines.stream, self._turns, self.rewards
        )
        collected = collector.collect(
            chooser.choose(step), step, spares=chooser.spares, clock=clock
        )
        metrics = collected.metrics | staleness_metrics(
            collected.rollouts, step, limit=self.config.rollout.staleness
        )
        if self.curriculum is not None:
            metrics |= self.curriculum.observe(step, collected.num_correct)
        return replace(collected, metrics=metrics)

    @property
    def _turns(self) -> TurnTaking:
        inputs = self.inputs
        return TurnTaking(
            self.config.env, inputs.decode, inputs.encode, self.rewards.toolbox, inputs.tool_form
        )

    def test(self, step: int) -> dict[str, float]:
        """Returns `val/*`, means over the responses that count; `held_out/` keeps the first ones.

        The test problems are asked as in the evaluation: greedily, or several times sampled.
        """
        evaluation = self.config.evaluation
        problems = self.inputs.test[: self.config.trainer.test_problems]
        samples = evaluation.samples_that_count
        requests = [
            GenerationRequest(item.prompt_ids, seed_of(evaluation.seed, item.problem.index, sample))
            for item in problems
            for sample in range(samples)
        ]
        sampling = evaluation.sampling(
            self.config.data.max_response_length, mode=evaluation.decoding
        )
        stream = partial(self.workers.engines.stream, phase="evaluate")
        of_requests = [item.problem for item in problems for _ in range(samples)]
        answers = read_answers(
            self._turns.play(stream, requests, sampling, of_requests),
            of_requests,
            decode=self.inputs.decode,
            rewards=self.rewards,
        )
        rollouts = to_rollouts(problems, answers, self.config.env, group_size=samples)
        self.run.held_out.write(step, rollouts[::samples], mode=evaluation.decoding)
        return {
            "val/accuracy": float(np.mean([r.scored.verdict == "correct" for r in rollouts])),
            "val/score": float(np.mean([r.scored.score for r in rollouts])),
            "val/response_length/mean": float(
                np.mean([len(r.completion.response_ids) for r in rollouts])
            ),
            **_score_by_source(rollouts),
        }


def _score_by_source(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns the mean score by `data_source`, as verl names it: `val/test_score/countdown`."""
    scores: dict[str, list[float]] = {}
    for rollout in rollouts:
        scores.setdefault(rollout.problem.data_source, []).append(rollout.scored.score)
    return {
        f"val/test_score/{source}": float(np.mean(of_source))
        for source, of_source in scores.items()
    }
