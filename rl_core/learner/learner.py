"""The learner: actor, critic and reference, from a batch of rollouts to new weights.

The way of a batch: `make_experience` (experience.py: log-probs, values, advantages), `update`
(update.py: losses, gradients, optimizers), and what a checkpoint holds of it all (snapshot.py).
Not here: Ray (workers/), formulas (algos/), generation (rollout/), which checkpoints stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from rl_core.algos.kl import adaptive_kl_coef, fixed_kl_coef
from rl_core.batch import TrainBatch
from rl_core.checkpoints.tensor_snapshot import SnapshotMemory
from rl_core.config.run import RunConfig
from rl_core.learner.experience import Experience, ExperienceMaker
from rl_core.learner.metrics import (
    batch_metrics,
    kl_per_response,
    policy_metrics,
    rollout_columns,
)
from rl_core.learner.microbatching import Microbatching
from rl_core.learner.optimizer import make_optimizers, offload_device
from rl_core.learner.profiling import Utilisation
from rl_core.learner.ranks import ALONE, Ranks
from rl_core.learner.snapshot import LearnerSnapshot
from rl_core.learner.state import STATE_FOLDER
from rl_core.learner.update import Updater
from rl_core.models.forward import ForwardPass, forward_pass
from rl_core.models.loading import complete_weights, load_models
from rl_core.models.lora import merged_state
from rl_core.models.sharding import shard, sharded_pass, whole_tensor
from rl_core.models.shared_prefix import can_share_prompts

_KL_CONTROLLERS = {"fixed": fixed_kl_coef, "adaptive": adaptive_kl_coef}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Learner:
    """Holds the models and their optimizers; `make_experience`, then `update`, once per step.

    Args:
        config: the run's settings.
        model_path: folder of the base model: where actor and critic start, what the reference is.
        resume_from: a folder written by `save`; by default a fresh start.
        budgets_file: token budgets that runs have learned, see `Microbatching`; by default none.
        ranks: this process among the learner's; all must call each method in the same order.

    Raises:
        ValueError: for a missing or unsuitable model, or a folder that cannot be resumed from.
    """

    def __init__(
        self,
        config: RunConfig,
        model_path: Path,
        resume_from: Path | None = None,
        budgets_file: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self.device = torch.device("cuda" if config.resources.learner_gpus else "cpu")
        # Ranks take a layer at a time to their card, which need not hold a whole model.
        in_memory = not ranks.is_alone and not config.model.load_in_4bit
        first = torch.device("cpu") if in_memory else self.device
        self.models = load_models(config, model_path, resume_from, first)
        offload_to = offload_device(config, self.device)
        forward: ForwardPass = partial(
            forward_pass,
            temperature=config.rollout.temperature,
            compute_dtype=_DTYPES[config.compute_dtype],
        )
        if not ranks.is_alone:
            roots = shard(self.models, self.device, offloads=offload_to is not None)
            forward = partial(sharded_pass, roots, forward)
        self.optimizers = make_optimizers(config, self.models, offload_to)
        self.microbatching = Microbatching(
            config, self.models.actor, self.device, file=budgets_file, ranks=ranks
        )
        self._make = ExperienceMaker(
            config, self.models, forward, self.microbatching, offload_to=offload_to, ranks=ranks
        )
        self.updater = Updater(
            config, self.models, self.optimizers, forward, self.microbatching, ranks
        )
        self._utilisation = Utilisation(
            config,
            model_path,
            self.device,
            shares_prompts=can_share_prompts(self.models.actor.get_decoder()),
        )
        self._snapshot = LearnerSnapshot(
            config,
            self.models.actor,
            self.optimizers,
            model_path=model_path,
            memory=SnapshotMemory(
                self.microbatching.threads, copies=config.checkpoints.in_background
            ),
            ranks=ranks,
        )
        self._kl_coef = config.algorithm.kl_coef
        self.steps_done = 0
        """Steps whose update is in the weights."""
        if resume_from is not None:
            self.load_state(resume_from / STATE_FOLDER)

    def learn(self, batch: TrainBatch) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Does a whole step; returns its metrics and the rollout log's columns."""
        experience, metrics = self.make_experience(batch)
        return metrics | self.update(experience), rollout_columns(experience)

    def make_experience(self, batch: TrainBatch) -> tuple[Experience, dict[str, float]]:
        """Returns the batch with log-probs, values and advantages, and metrics; changes nothing.

        What the step's only update computes anyway follows from that, see `Experience`.

        Args:
            batch: the step's rollouts, groups whole, on any device.
        """
        experience, costs = self._make(
            batch.to(self.device),
            kl_coef=self._kl_coef,
            is_on_policy=self.next_update_is_on_policy(),
        )
        metrics = {} if experience.values_follow else self._batch_metrics(experience)
        return experience, metrics | costs

    def _batch_metrics(self, experience: Experience) -> dict[str, float]:
        return batch_metrics(
            experience,
            algorithm=self.config.algorithm,
            max_prompt_length=self.config.data.max_prompt_length,
            num_ranks=self.config.resources.learner_ranks,
        )

    def update(self, experience: Experience) -> dict[str, float]:
        """Moves critic and actor along a step's experience, returns metrics under verl's names.

        The actor stands still during the first `critic.warmup_steps` steps of a run with a critic.
        """
        actor_learns = self._actor_learns()
        metrics = self.updater(experience, kl_coef=self._kl_coef, actor_learns=actor_learns)
        if experience.values_follow:
            metrics |= self._batch_metrics(experience)
        metrics |= policy_metrics(experience, kl_coef=self._kl_coef)
        teaches = self.updater.teaches("actor", experience)
        metrics |= self._utilisation(experience.batch, teaches, metrics)
        metrics |= self.microbatching.end_step()
        if actor_learns:
            self._kl_coef = self._next_kl_coef(experience)
        self.steps_done += 1
        return metrics

    def _actor_learns(self) -> bool:
        return self.models.critic is None or self.steps_done >= self.config.critic.warmup_steps

    def next_update_is_on_policy(self) -> bool:
        """Whether the step's log-probs are those of its only update, see `has_one_update`."""
        return self.config.has_one_update and self._actor_learns()

    def _next_kl_coef(self, experience: Experience) -> float:
        algorithm = self.config.algorithm
        return _KL_CONTROLLERS[algorithm.kl_controller](
            self._kl_coef,
            kl_per_response(experience),
            target=algorithm.kl_target,
            horizon=algorithm.kl_horizon,
            num_rollouts=len(experience.batch),
        )

    def weights(self) -> dict[str, Tensor]:
        """Returns the actor's weights for the rollout engines, see `complete_weights`."""
        return complete_weights(self.models.actor)

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors of `weights` one by one; of a sharded model only one is whole."""
        return ((name, whole_tensor(tensor)) for name, tensor in merged_state(self.models.actor))

    def save(self, folder: Path) -> None:
        """Writes a checkpoint: the model as it can be served, and beside it the learner's state."""
        self.snapshot()
        self.write_snapshot(folder)

    def reserve_snapshot(self) -> None:
        """Makes memory for snapshots ready; a step may run meanwhile."""
        self._snapshot.reserve()

    def snapshot(self) -> int:
        """Copies all that a checkpoint holds, over the last snapshot: nobody may be writing it."""
        return self._snapshot.take(
            {
                "steps_done": self.steps_done,
                "kl_coef": self._kl_coef,
                "token_budgets": self.microbatching.state(),
            }
        )

    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot as a checkpoint; if a copy, beside any other method."""
        self._snapshot.write(folder)

    def load_state(self, folder: Path) -> None:
        """Restores a checkpoint's state; the actor's weights come with its model.

        Raises:
            ValueError: as `LearnerSnapshot.restore` does.
        """
        numbers = self._snapshot.restore(folder)
        self.steps_done = numbers["steps_done"]
        if self.config.algorithm.kl_controller == "adaptive":  # a fixed one is what settings say
            self._kl_coef = numbers["kl_coef"]
        self.microbatching.restore(numbers["token_budgets"])
