"""The learner: actor, critic and reference, from a batch of rollouts to new weights.

Not here: Ray (workers.py), formulas (algos/), generation (rollout/), which checkpoints stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from rl_core.algos.kl import adaptive_kl_coef, fixed_kl_coef
from rl_core.algos.masking import Denominators, count_denominators
from rl_core.batch import TrainBatch, mini_batches
from rl_core.checkpoints.tensor_snapshot import SnapshotMemory
from rl_core.config.run import RunConfig
from rl_core.errors import out_of_memory_as
from rl_core.learner.experience import (
    Prepared,
    assemble,
    batch_metrics,
    kl_per_response,
    policy_metrics,
    rollout_columns,
)
from rl_core.learner.microbatching import Fitting
from rl_core.learner.objectives import actor_loss, critic_loss
from rl_core.learner.offload import brought, resting_place
from rl_core.learner.optimizer import Optimized, optimize_models
from rl_core.learner.profiling import Utilisation, measured
from rl_core.learner.snapshot import LearnerSnapshot
from rl_core.learner.state import STATE_FOLDER
from rl_core.models.forward import TokenOutputs, forward_pass
from rl_core.models.loading import complete_weights, load_models
from rl_core.models.shared_prefix import can_share_prompts
from rl_core.system.threads import MicroBatchThreads
from rl_core.types import SnapshotBytes

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
        budgets_file: token budgets that runs have learned, see `Fitting`; by default none.

    Raises:
        ValueError: for a missing or unsuitable model, or a folder that cannot be resumed from.
    """

    def __init__(
        self,
        config: RunConfig,
        model_path: Path,
        resume_from: Path | None = None,
        budgets_file: Path | None = None,
    ) -> None:
        torch.manual_seed(config.seed)
        self._config = config
        self._device = torch.device("cuda" if config.resources.learner_gpus else "cpu")
        on_cpu = self._device.type == "cpu"
        self._threads = MicroBatchThreads(config.resources.learner_threads if on_cpu else 1)
        loaded = load_models(config, model_path, resume_from, self._device)
        self._actor, self._reference, self._critic = loaded.actor, loaded.reference, loaded.critic
        rests_on = resting_place(config, self._device)
        self._optimized = optimize_models(config, loaded, rests_on)
        # With adapters it is the actor without them, and stays where that is.
        self._with_reference = partial(
            brought, device=self._device, rests_on=None if config.model.lora_rank else rests_on
        )
        dtype, temperature = _DTYPES[config.model.dtype], config.rollout.temperature
        self._forward = partial(forward_pass, temperature=temperature, compute_dtype=dtype)
        self._utilisation = Utilisation(config, model_path, self._device)
        self._kl_coef = config.algorithm.kl_coef
        self._fitting = Fitting(
            config,
            self._actor,
            self._device,
            share_prompts=can_share_prompts(self._actor),
            file=budgets_file,
        )
        self._snapshot = LearnerSnapshot(
            config,
            self._actor,
            self._optimized,
            model_path=model_path,
            memory=SnapshotMemory(self._threads, copies=config.checkpoints.in_background),
        )
        self.steps_done = 0
        """Steps whose update is in the weights."""
        if resume_from is not None:
            self.load_state(resume_from / STATE_FOLDER)
        if self._reference is not None:
            with self._with_reference(self._reference):
                pass  # where it was loaded, and afterwards where it rests

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
        algorithm, costs = self._config.algorithm, dict[str, float]()
        old_logprobs = ref_logprobs = values = None
        if not self._next_update_is_on_policy():
            with measured("old_log_prob", self._device, costs):
                shared = self._critic if self._config.critic.share_trunk else None
                forward = partial(self._forward, actor=self._actor, critic=shared)
                outputs = self._evaluate("old_log_prob", batch, forward)
                old_logprobs, values = outputs.logprobs, outputs.values
        if self._reference is not None:
            with measured("ref", self._device, costs), self._with_reference(self._reference):
                forward = partial(self._forward, actor=self._reference)
                ref_logprobs = self._evaluate("ref", batch, forward).logprobs
        if self._critic is not None and values is None:
            with measured("values", self._device, costs):
                forward = partial(self._forward, critic=self._critic)
                values = self._evaluate("values", batch, forward).values
        with measured("adv", self._device, costs):
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
        return prepared, metrics | costs

    def update(self, prepared: Prepared) -> dict[str, float]:
        """Moves critic and actor along one prepared batch, returns metrics under verl's names.

        One after the other, or at once where they share a trunk. The actor stands still during the
        first `critic.warmup_steps` steps of a run with a critic.
        """
        metrics: dict[str, float] = {}
        actor_learns = self._actor_learns()
        moved, micro_loss = {"actor": self._optimized["actor"]}, self._actor_loss
        if actor_learns and self._config.critic.share_trunk:
            moved, micro_loss = self._optimized, self._joint_loss
        elif self._critic is not None:
            with measured("update_critic", self._device, metrics):
                critic = {"critic": self._optimized["critic"]}
                metrics |= self._run_epochs(prepared, critic, self._critic_loss)
        if actor_learns:
            with measured("update_actor", self._device, metrics):
                metrics |= self._run_epochs(prepared, moved, micro_loss)
        metrics |= policy_metrics(prepared, kl_coef=self._kl_coef)
        metrics |= self._utilisation(prepared.batch, metrics) | self._fitting.end_step()
        if actor_learns:
            self._kl_coef = self._next_kl_coef(prepared)
        self.steps_done += 1
        return metrics

    def _actor_learns(self) -> bool:
        return self._critic is None or self.steps_done >= self._config.critic.warmup_steps

    def _next_update_is_on_policy(self) -> bool:
        """Whether the step's log-probs are those of its only update, see `has_one_update`."""
        return self._config.has_one_update and self._actor_learns()

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
    def _evaluate(
        self, phase: str, batch: TrainBatch, forward: Callable[[TrainBatch], TokenOutputs]
    ) -> TokenOutputs:
        """Returns `forward` over the batch, computed by micro-batches."""

        def attempt(parts: list[Tensor]) -> TokenOutputs:
            results: dict[str, Tensor] = {}
            computed = self._threads.map(lambda rows: forward(batch.select(rows)), parts)
            for rows, outputs in zip(parts, computed, strict=True):
                for name, part in vars(outputs).items():
                    if part is not None:
                        if name not in results:
                            results[name] = part.new_zeros(batch.rollout_logprobs.shape)
                        results[name][rows.to(self._device), : part.shape[-1]] = part
            return TokenOutputs(**results)

        return self._fitting(phase, batch, attempt)

    def _run_epochs(
        self, prepared: Prepared, moved: Mapping[str, Optimized], micro_loss: MicroLoss
    ) -> dict[str, float]:
        """Runs all updates of a step that one loss asks for; returns metrics, means over updates.

        Args:
            prepared: the step's whole batch.
            moved: what learns from the loss, by the name that its metrics start with.
            micro_loss: the loss of a micro-batch.
        """
        actor, updates = self._config.actor, []
        rates = {f"{name}/lr": optimized.lr for name, optimized in moved.items()}
        parameters = [p for optimized in moved.values() for p in optimized.parameters]
        phase = f"update_{next(iter(moved))}"
        for _ in range(actor.ppo_epochs):
            for rows in mini_batches(prepared.batch.group_ids, actor.mini_batch_size):
                mini = prepared if prepared.is_on_policy else prepared.select(rows)

                def attempt(parts: list[Tensor], mini: Prepared = mini) -> dict[str, Tensor]:
                    for optimized in moved.values():
                        optimized.rest()  # after an attempt that ran out of memory late
                    shares = self._accumulate(mini, parts, parameters, micro_loss)
                    norms = {f"{name}/grad_norm": x.clip() for name, x in moved.items()}
                    return shares | norms

                updates.append(self._fitting(phase, mini.batch, attempt))
                # Not done again: weights move once. All memory for it is there, see `clip`.
                with out_of_memory_as(phase):
                    for name, optimized in moved.items():
                        optimized.move(updates[-1][f"{name}/grad_norm"])
        for optimized in moved.values():
            optimized.end_step()
        means = {
            name: float(torch.stack([shares[name] for shares in updates]).mean())
            for name in updates[0]
        }
        return means | rates

    def _accumulate(
        self,
        mini: Prepared,
        parts: Sequence[Tensor],
        parameters: Sequence[nn.Parameter],
        micro_loss: MicroLoss,
    ) -> dict[str, Tensor]:
        """Sets the weights' `.grad` to a mini-batch's gradient; returns its metrics, scalars.

        Args:
            mini: the mini-batch; what it is divided by does not depend on its parts.
            parts: rows of its micro-batches, int64 [b] each.
            parameters: those that learn.
            micro_loss: the loss of a micro-batch.
        """
        for parameter in parameters:
            parameter.grad = None  # of an attempt that ran out of memory half-way
        mask = mini.loss_mask
        # Where all responses are masked nothing is learned, and any denominator will do.
        denominators = count_denominators(mask if bool(mask.any()) else mini.batch.response_mask)

        def loss_and_shares(rows: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            shares = micro_loss(mini.select(rows), denominators)
            logprobs = shares.pop("logprobs", None)
            if mini.is_on_policy and logprobs is not None:
                mini.old_logprobs[rows.to(self._device), : logprobs.shape[1]] = logprobs.detach()
            return shares.pop("loss"), {name: share.detach() for name, share in shares.items()}

        computed = self._threads.accumulate(parameters, loss_and_shares, parts)
        return {
            name: torch.stack([shares[name] for shares in computed]).sum() for name in computed[0]
        }

    def _actor_loss(self, micro: Prepared, denominators: Denominators) -> dict[str, Tensor]:
        outputs = self._forward(micro.batch, actor=self._actor, with_entropy=True)
        return self._actor_objective(outputs, micro, denominators)

    def _critic_loss(self, micro: Prepared, denominators: Denominators) -> dict[str, Tensor]:
        is_alone = not self._config.critic.share_trunk
        outputs = self._forward(micro.batch, critic=self._critic, trunk_learns=is_alone)
        return self._critic_objective(outputs, micro, denominators)

    def _joint_loss(self, micro: Prepared, denominators: Denominators) -> dict[str, Tensor]:
        outputs = self._forward(
            micro.batch, actor=self._actor, critic=self._critic, with_entropy=True
        )
        actor = self._actor_objective(outputs, micro, denominators)
        critic = self._critic_objective(outputs, micro, denominators)
        return actor | critic | {"loss": actor["loss"] + critic["loss"]}

    def _actor_objective(
        self, outputs: TokenOutputs, micro: Prepared, denominators: Denominators
    ) -> dict[str, Tensor]:
        return actor_loss(
            outputs,
            micro,
            actor=self._config.actor,
            algorithm=self._config.algorithm,
            kl_coef=self._kl_coef,
            denominators=denominators,
        )

    def _critic_objective(
        self, outputs: TokenOutputs, micro: Prepared, denominators: Denominators
    ) -> dict[str, Tensor]:
        critic = self._config.critic
        return critic_loss(
            outputs,
            micro,
            value_clip=critic.value_clip,
            loss_coef=critic.loss_coef if critic.share_trunk else 1.0,
            denominators=denominators,
        )

    def weights(self) -> dict[str, Tensor]:
        """Returns the actor's weights for the rollout engines, see `complete_weights`."""
        return complete_weights(self._actor)

    def save(self, folder: Path) -> None:
        """Writes a checkpoint: the model as it can be served, and beside it the learner's state."""
        self.snapshot()
        self.write_snapshot(folder)

    def reserve_snapshot(self) -> None:
        """Makes memory for snapshots ready; `prepare` and `update` may run meanwhile."""
        self._snapshot.reserve()

    def snapshot(self) -> SnapshotBytes:
        """Copies all that a checkpoint holds, over the last snapshot: nobody may be writing it."""
        return self._snapshot.take(
            {
                "steps_done": self.steps_done,
                "kl_coef": self._kl_coef,
                "token_budgets": self._fitting.state(),
            }
        )

    def write_snapshot(self, folder: Path, *, model_alone: bool = False) -> None:
        """Writes the last snapshot as a checkpoint; if a copy, beside any other method."""
        self._snapshot.write(folder, model_alone=model_alone)

    def load_state(self, folder: Path) -> None:
        """Puts back a checkpoint's state; the actor's weights come with its model.

        Raises:
            ValueError: as `LearnerSnapshot.put_back` does.
        """
        numbers = self._snapshot.put_back(folder)
        self._kl_coef, self.steps_done = numbers["kl_coef"], numbers["steps_done"]
        if "token_budgets" in numbers:  # not in a checkpoint from before there were any
            self._fitting.restore(numbers["token_budgets"])
