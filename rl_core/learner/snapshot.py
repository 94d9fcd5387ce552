"""What a checkpoint holds of a learner: copied while it stands still, written later, restored."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import transformers
from torch import Tensor

from rl_core.checkpoints.tensor_snapshot import SnapshotMemory, bytes_to_write
from rl_core.config.run import RunConfig
from rl_core.learner.optimizer import ModelOptimizer
from rl_core.learner.ranks import ALONE, Ranks
from rl_core.learner.state import (
    STATE_FOLDER,
    check_settings,
    model_settings,
    read_state,
    restore_rng,
    rng_tensors,
    write_state,
)
from rl_core.models.loading import complete_weights
from rl_core.models.lora import merged_state
from rl_core.models.saving import save_actor, save_beside_parts, save_part, tokenizer_bytes


class LearnerSnapshot:
    """The actor as it can be served, and beside it all that an exact resume needs.

    Args:
        config: the run's settings.
        actor: the policy.
        optimizers: of what learns, by name: the actor, and the critic where there is one.
        model_path: the folder whose tokenizer goes along.
        memory: where copies are kept.
        ranks: of several, each copies and writes a share of the tensors, whole.
    """

    def __init__(
        self,
        config: RunConfig,
        actor: transformers.PreTrainedModel,
        optimizers: Mapping[str, ModelOptimizer],
        *,
        model_path: Path,
        memory: SnapshotMemory,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._config, self._actor, self._optimizers = config, actor, optimizers
        self._model_path, self._memory = model_path, memory
        self._taken: tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]
        self._owners: Mapping[str, int] = {}
        """Of the snapshot's weights, the rank that has each."""

    def reserve(self) -> None:
        """Makes memory for snapshots ready; of ranks, the first snapshot does."""
        if not self._ranks.is_alone:
            return  # what they would look at is gathered meanwhile
        tensors = self._trained_weights()
        if self._config.model.lora_rank:
            for name, merged in merged_state(self._actor):
                self._memory.reserve({name: merged})
        else:
            tensors |= complete_weights(self._actor)
        for name, optimizer in self._optimizers.items():
            tensors |= optimizer.moments_to_come(name)
        self._memory.reserve(tensors)

    def take(self, numbers: Mapping[str, Any]) -> int:
        """Copies weights, optimizers and random states over the last snapshot; returns its size.

        Args:
            numbers: kept beside them; must not change any more.
        """
        state = self._trained_weights() | rng_tensors()
        numbers = {**numbers, "settings": model_settings(self._config)}
        for name, optimizer in self._optimizers.items():
            state |= optimizer.state_tensors(name)
            numbers[f"{name}_schedule"] = copy.deepcopy(optimizer.schedule_state())
        if self._ranks.is_alone and self._config.model.lora_rank:
            weights: dict[str, Tensor] = {}
            for name, merged in merged_state(self._actor):  # a card never holds all of them
                kept = merged if self._config.checkpoints.in_background else merged.cpu()
                weights |= self._memory.copy({name: kept})
            state = self._memory.copy(state)
        elif self._ranks.is_alone:
            weights = complete_weights(self._actor)
            assert not weights.keys() & state.keys()
            copies = self._memory.copy(weights | state)
            weights, state = ({name: copies[name] for name in part} for part in (weights, state))
        else:
            weights, self._owners = self._copy_share(merged_state(self._actor))
            state, _ = self._copy_share(state.items())
        self._taken = weights, state, numbers
        return bytes_to_write(weights | state, beside=tokenizer_bytes(self._model_path))

    def _copy_share(
        self, tensors: Iterable[tuple[str, Tensor]]
    ) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Returns copies of this rank's share, and who has which."""
        copies: dict[str, Tensor] = {}
        owners: dict[str, int] = {}
        for name, owner, whole in self._ranks.divide(tensors):
            owners[name] = owner
            if whole is not None:
                copies |= self._memory.copy({name: whole.detach()})
        return copies, owners

    def write(self, folder: Path) -> None:
        """Writes the last snapshot as a checkpoint; of several ranks, each writes its share."""
        weights, state, numbers = self._taken
        rank, size = self._ranks.rank, self._ranks.size
        if self._ranks.is_alone:
            save_actor(self._actor, weights, self._model_path, folder)
        else:
            save_part(weights, folder, rank, size)
            if rank == 0:
                save_beside_parts(self._actor, self._owners, size, self._model_path, folder)
        write_state(folder / STATE_FOLDER, state, numbers, rank, size)

    def restore(self, folder: Path) -> dict[str, Any]:
        """Restores a checkpoint's state, all but the actor's weights, and returns its numbers.

        Raises:
            ValueError: if there is no such state, none of a critic where one is trained, or one
                whose adapters or critic are others.
        """
        tensors, numbers = read_state(folder)
        check_settings(folder, numbers, self._config)
        for name, optimizer in self._optimizers.items():
            if name == "critic" or self._config.model.lora_rank:
                optimizer.restore_weights(f"{name}_weights", tensors)
            optimizer.restore(name, tensors, numbers[f"{name}_schedule"])
        restore_rng(tensors)
        return numbers

    def _trained_weights(self) -> dict[str, Tensor]:
        """Returns what learns and is not in the model that is served."""
        return {
            name: weight
            for model, optimizer in self._optimizers.items()
            if model == "critic" or self._config.model.lora_rank
            for name, weight in optimizer.weight_tensors(f"{model}_weights").items()
        }
