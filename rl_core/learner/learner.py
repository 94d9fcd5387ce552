"""The learner: actor, critic and reference, from a batch of rollouts to new weights.

The path of a batch is `Learner.learn`: `make_experience` (experience.py: log-probs, values,
advantages), then `Updater.update` (update.py: losses, gradients, optimizers). A checkpoint's
content is copied while no weight changes, written later, and restored (state.py).
Not here: Ray (workers/), formulas (algos/), generation (rollout/), which checkpoints are kept.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from rl_core.algos.kl import adaptive_kl_coef, fixed_kl_coef
from rl_core.batch import TrainBatch
from rl_core.checkpoints.tensor_snapshot import SnapshotMemory, bytes_to_write
from rl_core.config.run import RunConfig
from rl_core.data.prompts import name_for_others
from rl_core.errors import out_of_memory_as
from rl_core.learner.experience import Experience, Reader, assemble
from rl_core.learner.metrics import rollout_columns, step_metrics
from rl_core.learner.microbatching import Microbatching
from rl_core.learner.optimizer import make_optimizers, offload_device
from rl_core.learner.profiling import Utilisation, measured
from rl_core.learner.ranks import ALONE, Ranks
from rl_core.learner.state import (
    STATE_FOLDER,
    check_settings,
    demand_file,
    model_settings,
    read_state,
    restore_rng,
    rng_tensors,
    write_state,
)
from rl_core.learner.update import Updater
from rl_core.models.forward import ForwardPass, forward_pass
from rl_core.models.loading import complete_weights, load_models
from rl_core.models.lora import merged_state, peft_name, save_adapter
from rl_core.models.saving import save_actor, save_beside, save_index, save_part, tokenizer_bytes
from rl_core.models.sharding import shard, sharded_pass
from rl_core.models.shared_prefix import can_share_prompts
from rl_core.models.shares import cut_as, whole_tensor
from rl_core.system.heap import give_back_heap
from rl_core.system.model_folder import ADAPTER_FOLDER, ADAPTER_WEIGHTS

_KL_CONTROLLERS = {"fixed": fixed_kl_coef, "adaptive": adaptive_kl_coef}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Learner:
    """Holds the models and their optimizers; `learn` does a step.

    Actor and critic start from the folder of the base model, which is also the reference, or from a
    folder written by `save`. All of the learner's ranks must call each method in the same order.

    Raises:
        ValueError: for a missing or unsuitable model, or a folder that cannot be resumed from.
    """

    def __init__(
        self,
        config: RunConfig,
        model_path: Path,
        resume_from: Path | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        torch.manual_seed(config.seed)
        self.config = config
        self._model_path = model_path
        self._ranks = ranks
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
        self.microbatching = Microbatching(config, self.models.actor, self.device, ranks)
        self._reader = Reader(config, self.models, forward, self.microbatching, offload_to)
        self.updater = Updater(config, self.models, self.optimizers, forward, self.microbatching)
        self._utilisation = Utilisation(
            config,
            model_path,
            self.device,
            shares_prompts=can_share_prompts(self.models.actor.get_decoder()),
        )
        self._memory = SnapshotMemory(
            self.microbatching.threads, copies=config.checkpoints.in_background
        )
        self._snapshot: tuple[
            dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], dict[str, Any]
        ]
        """The last snapshot's weights, adapter, other tensors and numbers, or a rank's share."""
        self._owners: Mapping[str, int] = {}
        """By name, the rank that has each of the snapshot's weights."""
        self._kl_coef = config.algorithm.kl_coef
        self.steps_done = 0
        """Steps whose update is in the weights."""
        if resume_from is not None:
            self.load_state(resume_from)

    def learn(self, batch: TrainBatch) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Does a whole step; returns its metrics and the rollout log's columns.

        The batch may be on any device. The actor does not learn in the first `critic.warmup_steps`
        steps of a run with a critic.
        """
        config = self.config
        with out_of_memory_as("prepare"):
            experience, costs = self.make_experience(batch)
        give_back_heap()  # else the update's peak includes what the passes before it have left
        with out_of_memory_as("update"):
            actor_learns = self._actor_learns()
            experience, metrics = self.updater.update(
                experience, kl_coef=self._kl_coef, actor_learns=actor_learns
            )
            metrics |= step_metrics(experience, config, self._kl_coef)
            metrics |= self.microbatching.budgets.end_step()
            teaches = self.updater.teaches("actor", experience)
            metrics |= self._utilisation.shares(experience.batch, teaches, metrics)
        if actor_learns:
            self._kl_coef = _KL_CONTROLLERS[config.algorithm.kl_controller](
                self._kl_coef,
                experience.kl_per_response,
                target=config.algorithm.kl_target,
                horizon=config.algorithm.kl_horizon,
                num_rollouts=len(batch),
            )
        self.steps_done += 1
        return costs | metrics, rollout_columns(experience)

    def make_experience(self, batch: TrainBatch) -> tuple[Experience, dict[str, float]]:
        """Returns the batch with log-probs, values and advantages, and costs; changes nothing.

        Groups must be whole. What the step's only update computes anyway is left out: if the update
        is on-policy there are no `old_logprobs`, and if the critic has only one, no values.
        """
        config = self.config
        models = self.models
        costs: dict[str, float] = {}
        old = ref = values = taught = states = None
        batch = batch.to(self.device)
        if not self.next_update_is_on_policy():
            with measured("old_log_prob", self.device, costs):
                old, _ = self._reader.read("old_log_prob", batch, actor=models.actor)
        if models.reference is not None:
            with measured("ref", self.device, costs):
                ref, _ = self._reader.read("ref", batch, actor=models.reference)
        if models.teacher is not None:
            with measured("teacher", self.device, costs):
                is_full = config.teacher.signal == "full"
                taught, states = self._reader.read(
                    "teacher", batch, actor=models.teacher, with_states=is_full
                )
        if models.critic is not None and not config.has_one_critic_update:
            with measured("values", self.device, costs):
                values, _ = self._reader.read("values", batch, critic=models.critic)
        with measured("adv", self.device, costs):
            experience = assemble(
                batch,
                old_logprobs=old,
                ref_logprobs=ref,
                values=values,
                config=config,
                kl_coef=self._kl_coef,
            )
        return replace(experience, teacher_logprobs=taught, teacher_states=states), costs

    def _actor_learns(self) -> bool:
        return self.models.critic is None or self.steps_done >= self.config.critic.warmup_steps

    def next_update_is_on_policy(self) -> bool:
        """Whether the step's log-probs are those of its only update, see `has_one_update`."""
        return self.config.has_one_update and self._actor_learns()

    def weights(self) -> dict[str, Tensor]:
        """Returns the actor's weights for the rollout engines, see `complete_weights`."""
        return complete_weights(self.models.actor)

    def each_weight(self) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors of `weights` one by one; of a sharded model only one is gathered."""
        return ((name, whole_tensor(tensor)) for name, tensor in merged_state(self.models.actor))

    def save(self, folder: Path) -> None:
        """Writes a checkpoint: the model or its adapter, and the learner's state."""
        self.snapshot()
        self.write_snapshot(folder)

    def reserve_snapshot(self) -> None:
        """Makes memory for snapshots ready; a step may run meanwhile."""
        if not self._ranks.is_alone:
            return  # a step may be gathering the weights: the first snapshot does it
        tensors = self._critic_weights() | self._adapter()
        if not self.config.model.lora_rank:
            tensors |= self.weights()
        elif self.config.saves_whole_models:
            for name, merged in merged_state(self.models.actor):
                self._memory.reserve({name: merged})
        for name, optimizer in self.optimizers.items():
            tensors |= optimizer.moments_to_come(name)
        self._memory.reserve(tensors)

    def snapshot(self) -> int:
        """Copies all that a checkpoint holds over the last snapshot; returns its size in bytes.

        Must not run while the last one is being written. Of several ranks, each copies some of the
        tensors, and each of these whole.
        """
        adapter = self._adapter()
        state = self._critic_weights() | rng_tensors()
        numbers = {
            "steps_done": self.steps_done,
            "kl_coef": self._kl_coef,
            "token_budgets": {"learned": self.microbatching.budgets.learned()},
            "settings": model_settings(self.config),
        }
        for name, optimizer in self.optimizers.items():
            state |= optimizer.state_tensors(name)
            numbers[f"{name}_schedule"] = copy.deepcopy(optimizer.schedule_state())
        if self._ranks.is_alone and self.config.model.lora_rank:
            weights: dict[str, Tensor] = {}
            for name, merged in self._merged():  # a card never holds all of them
                kept = merged if self.config.checkpoints.in_background else merged.cpu()
                weights |= self._memory.copy({name: kept})
            adapter = self._memory.copy(adapter)
            state = self._memory.copy(state)
        elif self._ranks.is_alone:
            weights = self.weights()
            assert not weights.keys() & state.keys()
            copies = self._memory.copy(weights | state)
            weights, state = ({name: copies[name] for name in part} for part in (weights, state))
        else:
            weights, self._owners = self._copy_share(self._merged())
            adapter, _ = self._copy_share(adapter.items(), owner=0)
            state, _ = self._copy_share(state.items())
        self._snapshot = weights, adapter, state, numbers
        beside = tokenizer_bytes(self._model_path)
        return bytes_to_write(weights | adapter | state, beside=beside)

    def _merged(self) -> Iterable[tuple[str, Tensor]]:
        """Yields the model's weights, see `merged_state`; none if a checkpoint has no such."""
        return merged_state(self.models.actor) if self.config.saves_whole_models else ()

    def _copy_share(
        self, tensors: Iterable[tuple[str, Tensor]], owner: int | None = None
    ) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Returns copies of this rank's share, and which rank has which tensor."""
        copies: dict[str, Tensor] = {}
        owners: dict[str, int] = {}
        for name, keeper, whole in self._ranks.divide(tensors, owner):
            owners[name] = keeper
            if whole is not None:
                copies |= self._memory.copy({name: whole.detach()})
        return copies, owners

    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot as a checkpoint; if it is a copy, while other methods run.

        Of several ranks, each writes its share.
        """
        weights, adapter, state, numbers = self._snapshot
        rank = self._ranks.rank
        size = self._ranks.size
        if weights and self._ranks.is_alone:
            save_actor(self.models.actor, weights, self._model_path, folder)
        elif rank == 0:
            save_beside(self.models.actor, self._model_path, folder)
        if self._owners:
            save_part(weights, folder, rank, size)
            if rank == 0:
                save_index(self._owners, size, folder)
        if adapter:
            settings = self.config.model
            save_adapter(
                adapter,
                folder / ADAPTER_FOLDER,
                rank=settings.lora_rank,
                alpha=settings.lora_alpha,
                base=name_for_others(settings.path, self._model_path),
            )
        write_state(folder / STATE_FOLDER, state, numbers, rank, size)

    def load_state(self, checkpoint: Path) -> None:
        """Restores a checkpoint's state and adapter; other weights of the actor are its model's.

        Raises:
            ValueError: if there is no such state or adapter, it has none of a critic that is
                trained, or `check_settings` finds other settings in it.
        """
        folder = checkpoint / STATE_FOLDER
        tensors, numbers = read_state(folder)
        check_settings(folder, numbers, self.config)
        if self.config.model.lora_rank:
            file = checkpoint / ADAPTER_FOLDER / ADAPTER_WEIGHTS
            demand_file(file)
            self._restore(self._adapter(), load_file(file))
        self._restore(self._critic_weights(), tensors)
        for name, optimizer in self.optimizers.items():
            optimizer.restore(name, tensors, numbers[f"{name}_schedule"])
        restore_rng(tensors)
        self.steps_done = numbers["steps_done"]
        if self.config.algorithm.kl_controller == "adaptive":  # a fixed one is a setting
            self._kl_coef = numbers["kl_coef"]
        self.microbatching.budgets.restore(numbers["token_budgets"]["learned"])

    def _adapter(self) -> dict[str, Tensor]:
        """Returns the adapter's weights under PEFT's names; none if all weights learn."""
        if not self.config.model.lora_rank:
            return {}
        weights = self.optimizers["actor"].weight_tensors()
        return {peft_name(name): weight for name, weight in weights.items()}

    def _critic_weights(self) -> dict[str, Tensor]:
        """Returns the critic's trained weights under the names that its state has."""
        optimizer = self.optimizers.get("critic")
        weights = {} if optimizer is None else optimizer.weight_tensors()
        return {f"critic_weights.{name}": weight for name, weight in weights.items()}

    @staticmethod
    def _restore(weights: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            weight.copy_(cut_as(weight, saved[name]))
