"""The learner: actor, critic and reference, from a batch of rollouts to new weights.

Not here: Ray (workers.py), formulas (algos/), generation (rollout/), which checkpoints stay.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_core import models
from rl_core.algos.kl import adaptive_kl_coef, fixed_kl_coef, kl_estimate
from rl_core.algos.losses import (
    cispo_policy_loss,
    clipped_value_loss,
    gspo_policy_loss,
    ppo_policy_loss,
    truncated_importance_weights,
)
from rl_core.algos.masking import Denominators, aggregate, count_denominators
from rl_core.batch import TrainBatch, micro_batches, mini_batches
from rl_core.config import RunConfig
from rl_core.learner_state import read_state, restore_rng, rng_tensors, write_state
from rl_core.optimization import Optimized
from rl_core.preparation import (
    Prepared,
    assemble,
    batch_metrics,
    kl_per_response,
    policy_metrics,
    rollout_columns,
)
from rl_core.snapshot import SnapshotMemory
from rl_core.threads import MicroBatchThreads

STATE_FOLDER = "trainer"
"""Inside a checkpoint: what transformers does not need and a resume does."""
_POLICY_LOSSES = {"ppo": ppo_policy_loss, "gspo": gspo_policy_loss, "cispo": cispo_policy_loss}
_KL_CONTROLLERS = {"fixed": fixed_kl_coef, "adaptive": adaptive_kl_coef}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

MicroLoss = Callable[[Prepared, Denominators], dict[str, Tensor]]
"""A micro-batch's shares of `loss` (with gradient) and of metrics, by name; the actor's `logprobs`
[b, T] beside them."""


class Learner:
    """Holds the models and their optimizers; `prepare`, then `update`, once per step.

    Args:
        config: the run's settings.
        model_path: folder of the base model: where actor and critic start, what the reference is.
        resume_from: a folder written by `save`; by default a fresh start.

    Raises:
        ValueError: for a missing or unsuitable model, or a folder that cannot be resumed from.
    """

    def __init__(
        self, config: RunConfig, model_path: Path, resume_from: Path | None = None
    ) -> None:
        torch.manual_seed(config.seed)
        self._config = config
        self._model_path = model_path
        self._device = torch.device("cuda" if config.resources.learner_gpus else "cpu")
        on_cpu = self._device.type == "cpu"
        self._threads = MicroBatchThreads(config.resources.learner_threads if on_cpu else 1)
        actor = models.load_actor(resume_from or model_path, self._device)
        if config.model.gradient_checkpointing:
            models.checkpoint_gradients(actor)
        self._reference = None
        if config.algorithm.kl_mode != "none" and config.algorithm.kl_coef > 0:
            self._reference = models.load_actor(model_path, self._device).requires_grad_(False)
        # Decays alone need it, and the settings make sure that they have it.
        num_steps = config.trainer.total_steps or 0
        self._critic: models.Critic | None = None
        if config.algorithm.estimator == "gae":
            self._critic = models.make_critic(actor)
            self._critic_optimized = Optimized(
                self._critic,
                lr=config.critic.lr,
                schedule=config.critic.lr_schedule,
                warmup_steps=0,
                num_steps=num_steps,
                weight_decay=config.critic.weight_decay,
                grad_clip=config.critic.grad_clip,
            )
        self._actor = actor
        self._actor_optimized = Optimized(
            actor,
            lr=config.actor.lr,
            schedule=config.actor.lr_schedule,
            warmup_steps=config.actor.warmup_steps,
            num_steps=num_steps - (config.critic.warmup_steps if self._critic else 0),
            weight_decay=config.actor.weight_decay,
            grad_clip=config.actor.grad_clip,
        )
        dtype = _DTYPES[config.model.dtype]
        temperature = config.rollout.temperature
        self._logprobs = partial(
            models.response_logprobs, temperature=temperature, compute_dtype=dtype
        )
        self._logprobs_and_entropy = partial(
            models.response_logprobs_and_entropy, temperature=temperature, compute_dtype=dtype
        )
        self._values = partial(models.response_values, compute_dtype=dtype)
        self._kl_coef = config.algorithm.kl_coef
        self._snapshot_memory = SnapshotMemory(self._threads)
        self._snapshot: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]
        self.steps_done = 0
        """Steps whose update is in the weights."""
        if resume_from is not None:
            self.load_state(resume_from / STATE_FOLDER)

    def learn(self, batch: TrainBatch) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Prepares and updates; returns the step's metrics and the rollout log's columns."""
        prepared, metrics = self.prepare(batch)
        return metrics | self.update(prepared), rollout_columns(prepared)

    def prepare(self, batch: TrainBatch) -> tuple[Prepared, dict[str, float]]:
        """Returns the batch with log-probs, values and advantages, and metrics; changes nothing.

        Args:
            batch: the step's rollouts, groups whole, on any device.
        """
        batch = batch.to(self._device)
        algorithm, seconds = self._config.algorithm, dict[str, float]()
        old_logprobs = ref_logprobs = values = None
        if not self._next_update_is_on_policy():
            with self._timed("old_log_prob", seconds):
                old_logprobs = self._evaluate(batch, partial(self._logprobs, self._actor))
        if self._reference is not None:
            with self._timed("ref", seconds):
                ref_logprobs = self._evaluate(batch, partial(self._logprobs, self._reference))
        if self._critic is not None:
            with self._timed("values", seconds):
                values = self._evaluate(batch, partial(self._values, self._critic))
        with self._timed("adv", seconds):
            prepared = assemble(
                batch,
                old_logprobs=old_logprobs,
                ref_logprobs=ref_logprobs,
                values=values,
                algorithm=algorithm,
                kl_coef=self._kl_coef,
            )
            metrics = batch_metrics(
                prepared,
                algorithm=algorithm,
                max_prompt_length=self._config.data.max_prompt_length,
            )
        return prepared, metrics | seconds

    def update(self, prepared: Prepared) -> dict[str, float]:
        """Moves critic and actor along one prepared batch, returns metrics under verl's names.

        The actor stands still during the first `critic.warmup_steps` steps of a run with a critic.
        """
        metrics: dict[str, float] = {}
        if self._critic is not None:
            with self._timed("update_critic", metrics):
                moved = self._run_epochs(prepared, self._critic_optimized, self._critic_loss)
            metrics |= {f"critic/{name}": value for name, value in moved.items()}
        actor_learns = self._actor_learns()
        if actor_learns:
            with self._timed("update_actor", metrics):
                moved = self._run_epochs(prepared, self._actor_optimized, self._actor_loss)
            metrics |= {f"actor/{name}": value for name, value in moved.items()}
        metrics |= policy_metrics(prepared, kl_coef=self._kl_coef)
        if actor_learns:
            self._kl_coef = self._next_kl_coef(prepared)
        self.steps_done += 1
        return metrics

    def _actor_learns(self) -> bool:
        return self._critic is None or self.steps_done >= self._config.critic.warmup_steps

    def _next_update_is_on_policy(self) -> bool:
        """Whether the step's log-probs can be those of its only update, so that a pass is saved.

        Not where they are needed before it, for a KL penalty in the reward.
        """
        actor, batch_size = self._config.actor, self._config.data.train_batch_size
        has_one_update = actor.ppo_epochs == 1 and actor.mini_batch_size == batch_size
        in_reward = self._reference is not None and self._config.algorithm.kl_mode == "reward"
        return has_one_update and not in_reward and self._actor_learns()

    def _next_kl_coef(self, prepared: Prepared) -> float:
        algorithm = self._config.algorithm
        return _KL_CONTROLLERS[algorithm.kl_controller](
            self._kl_coef,
            kl_per_response(prepared),
            target=algorithm.kl_target,
            horizon=algorithm.kl_horizon,
            num_rollouts=len(prepared.batch),
        )

    @torch.no_grad()
    def _evaluate(self, batch: TrainBatch, forward: Callable[[TrainBatch], Tensor]) -> Tensor:
        """Returns `forward` over the batch, float32 [B, T], computed by micro-batches."""
        results = torch.zeros_like(batch.rollout_logprobs)
        parts = micro_batches(batch.lengths, self._config.actor.micro_batch_tokens)
        computed = self._threads.map(lambda rows: forward(batch.select(rows)), parts)
        for rows, part in zip(parts, computed, strict=True):
            results[rows.to(self._device), : part.shape[1]] = part
        return results

    def _run_epochs(
        self, prepared: Prepared, optimized: Optimized, micro_loss: MicroLoss
    ) -> dict[str, float]:
        """Runs all updates of a step for one model; returns its metrics, averaged over updates."""
        actor = self._config.actor
        lr, updates = optimized.lr, []
        for _ in range(actor.ppo_epochs):
            for rows in mini_batches(prepared.batch.group_ids, actor.mini_batch_size):
                mini = prepared if prepared.is_on_policy else prepared.select(rows)
                shares = self._accumulate(mini, optimized, micro_loss)
                shares["grad_norm"] = optimized.update()
                updates.append(shares)
        optimized.end_step()
        means = {
            name: float(torch.stack([shares[name] for shares in updates]).mean())
            for name in updates[0]
        }
        return means | {"lr": lr}

    def _accumulate(
        self, mini: Prepared, optimized: Optimized, micro_loss: MicroLoss
    ) -> dict[str, Tensor]:
        """Adds a mini-batch's gradient to the weights' `.grad`; returns its metrics, scalars."""
        mask = mini.loss_mask
        # Where all responses are masked nothing is learned, and any denominator will do.
        denominators = count_denominators(mask if bool(mask.any()) else mini.batch.response_mask)

        def loss_and_shares(rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            shares = micro_loss(mini.select(rows), denominators)
            logprobs = shares.pop("logprobs", None)
            if mini.is_on_policy and logprobs is not None:
                mini.old_logprobs[rows.to(self._device), : logprobs.shape[1]] = logprobs.detach()
            return shares.pop("loss"), {name: share.detach() for name, share in shares.items()}

        parts = micro_batches(mini.batch.lengths, self._config.actor.micro_batch_tokens)
        computed = self._threads.accumulate(optimized.parameters, loss_and_shares, parts)
        return {
            name: torch.stack([shares[name] for shares in computed]).sum() for name in computed[0]
        }

    def _actor_loss(self, micro: Prepared, denominators: Denominators) -> dict[str, Tensor]:
        actor, algorithm = self._config.actor, self._config.algorithm
        mask = micro.loss_mask
        logprobs, entropy = self._logprobs_and_entropy(self._actor, micro.batch)
        old_logprobs = logprobs.detach() if micro.is_on_policy else micro.old_logprobs
        weights = None
        if actor.importance_cap is not None:
            weights = truncated_importance_weights(
                old_logprobs, micro.batch.rollout_logprobs, mask, cap=actor.importance_cap
            )
        policy = _POLICY_LOSSES[actor.policy_loss](
            logprobs,
            old_logprobs,
            micro.advantages,
            mask,
            clip_eps_low=actor.clip_eps_low,
            clip_eps_high=actor.clip_eps_high,
            aggregation=actor.loss_aggregation,
            denominators=denominators,
            importance_weights=weights,
        )
        entropy_loss = aggregate(entropy, mask, actor.loss_aggregation, denominators)
        loss = policy.loss
        if actor.entropy_coef > 0:
            loss = loss - actor.entropy_coef * entropy_loss
        shares = {
            "pg_loss": policy.loss,
            "pg_clipfrac": policy.clip_frac,
            "ppo_kl": policy.approx_kl,
            "entropy_loss": entropy_loss,
            "logprobs": logprobs,
        }
        if algorithm.kl_mode == "loss" and micro.ref_logprobs is not None:
            kl = kl_estimate(logprobs, micro.ref_logprobs, algorithm.kl_estimator)
            shares["kl_loss"] = aggregate(kl, mask, actor.loss_aggregation, denominators)
            loss = loss + self._kl_coef * shares["kl_loss"]
        return shares | {"loss": loss}

    def _critic_loss(self, micro: Prepared, denominators: Denominators) -> dict[str, Tensor]:
        assert self._critic is not None
        assert micro.values is not None
        assert micro.returns is not None
        value = clipped_value_loss(
            self._values(self._critic, micro.batch),
            micro.values,
            micro.returns,
            micro.loss_mask,
            value_clip=self._config.critic.value_clip,
            denominators=denominators,
        )
        return {
            "loss": value.loss,
            "vf_loss": value.loss,
            "vf_clipfrac": value.clip_frac,
            "vpred_mean": value.prediction_mean,
        }

    def weights(self) -> dict[str, Tensor]:
        """Returns the actor's weights for the rollout engines, see `models.complete_weights`."""
        return models.complete_weights(self._actor)

    def save(self, folder: Path) -> None:
        """Writes a checkpoint: the model as it can be served, and beside it the learner's state."""
        self.snapshot()
        self.write_snapshot(folder)

    def reserve_snapshot(self) -> None:
        """Makes memory for snapshots ready; `prepare` and `update` may run meanwhile."""
        tensors = self.weights() | self._actor_optimized.moments_to_come("actor")
        if self._critic is not None:
            tensors |= self._critic_weights()
            tensors |= self._critic_optimized.moments_to_come("critic")
        self._snapshot_memory.reserve(tensors)

    def snapshot(self) -> None:
        """Copies all that a checkpoint holds, over the last snapshot: nobody may be writing it."""
        weights, (state, numbers) = self.weights(), self._state()
        assert not weights.keys() & state.keys()
        copies = self._snapshot_memory.copy(weights | state)
        self._snapshot = (
            {name: copies[name] for name in weights},
            {name: copies[name] for name in state},
            copy.deepcopy(numbers),
        )

    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot as a checkpoint; any other method may run meanwhile."""
        weights, state, numbers = self._snapshot
        models.save_actor(self._actor, weights, self._model_path, folder)
        write_state(folder / STATE_FOLDER, state, numbers)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Returns what an exact resume needs beside the actor's weights: tensors and numbers."""
        tensors = rng_tensors() | self._actor_optimized.state_tensors("actor")
        numbers = {
            "steps_done": self.steps_done,
            "kl_coef": self._kl_coef,
            "actor_schedule": self._actor_optimized.schedule_state(),
        }
        if self._critic is not None:
            tensors |= self._critic_weights()
            tensors |= self._critic_optimized.state_tensors("critic")
            numbers["critic_schedule"] = self._critic_optimized.schedule_state()
        return tensors, numbers

    def _critic_weights(self) -> dict[str, Tensor]:
        assert self._critic is not None
        return {f"critic_weights.{name}": x for name, x in self._critic.state_dict().items()}

    def load_state(self, folder: Path) -> None:
        """Puts back a checkpoint's state; the actor's weights come with its model.

        Raises:
            ValueError: if there is no such state, or none of a critic where one is trained.
        """
        tensors, numbers = read_state(folder)
        if self._critic is not None:
            if "critic_schedule" not in numbers:
                raise ValueError(
                    f"{folder}: saved without a critic, so algorithm.estimator=gae cannot resume it"
                )
            prefix = "critic_weights."
            self._critic.load_state_dict(
                {k.removeprefix(prefix): x for k, x in tensors.items() if k.startswith(prefix)}
            )
            self._critic_optimized.restore("critic", tensors, numbers["critic_schedule"])
        self._actor_optimized.restore("actor", tensors, numbers["actor_schedule"])
        self._kl_coef, self.steps_done = numbers["kl_coef"], numbers["steps_done"]
        restore_rng(tensors)

    @contextmanager
    def _timed(self, phase: str, seconds: dict[str, float]) -> Iterator[None]:
        """Notes the seconds of the block as `timing_s/<phase>`, a GPU's queue included."""
        start = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        seconds[f"timing_s/{phase}"] = time.perf_counter() - start
