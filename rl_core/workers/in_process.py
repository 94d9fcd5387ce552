"""Learner and one engine in this process, with the interface that the loop needs of `Workers`.

For `rl_core.train`: a debugger can step through all of it, and nothing of Ray is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from rl_core.batch import collate
from rl_core.config.run import RunConfig
from rl_core.errors import out_of_memory_as
from rl_core.learner.learner import Learner
from rl_core.models.weight_digest import weight_digest
from rl_core.resources.placement import LEARNER
from rl_core.rollout.adaptive_engine import AdaptiveEngine
from rl_core.system.heap import give_back_heap
from rl_core.types import Completion, GenerationRequest, Rollout, SamplingSettings

_PAD_ID = 0  # masked everywhere, so any token will do


class OneEngine:
    """An engine of this process, called as `Engines` is."""

    def __init__(self, config: RunConfig, model_path: Path) -> None:
        self._threads = config.resources.rollout_threads
        self._engine = AdaptiveEngine(config, model_path)

    def stream(
        self, requests: Sequence[GenerationRequest], sampling: SamplingSettings, phase: str = "gen"
    ) -> Iterator[tuple[int, Completion]]:
        """Yields completions with their requests' positions."""
        torch.set_num_threads(self._threads)
        return self._engine.generate(requests, sampling, phase)

    def end_step(self) -> dict[str, float]:
        """Returns the engine's memory metrics since the last call."""
        return self._engine.end_step()

    def release_weights(self) -> None:
        """Frees the weights that it can do without until `set_weights`."""
        self._engine.engine.release_weights()

    def set_weights(self, weights: Mapping[str, torch.Tensor], policy_version: int) -> None:
        """Replaces all weights by the learner's."""
        with out_of_memory_as("sync"):
            self._engine.engine.update_weights(weights)
        self._engine.engine.policy_version = policy_version

    @property
    def digest(self) -> str:
        """Of the weights that it holds."""
        return self._engine.engine.digest

    def close(self) -> None:
        """Frees the model's memory."""
        self._engine.engine.close()


class InProcess:
    """The learner and its engine, after the step of `resume_from`, a checkpoint's folder."""

    def __init__(
        self, config: RunConfig, model_path: Path, resume_from: Path | None, policy_version: int
    ) -> None:
        self._learner = Learner(config, model_path, resume_from)
        self.engines = OneEngine(config, model_path)
        self._dtype: torch.dtype = getattr(torch, config.compute_dtype)
        self._held: list[tuple[str, int, str]] = []
        self.sync_weights(policy_version)

    def learn(
        self, rollouts: Sequence[Rollout], step: int
    ) -> tuple[dict[str, float], dict[str, list[float]]]:
        """Trains on the rollouts of `step`; returns metrics and the rollout log's columns."""
        assert step == self._learner.steps_done + 1
        self.engines.release_weights()
        give_back_heap()
        torch.set_num_threads(1)  # on a CPU the learner runs micro-batches in threads of its own
        return self._learner.learn(collate(rollouts, _PAD_ID))

    def sync_weights(self, policy_version: int = 0) -> None:
        """Gives the engine the learner's weights, with the number of their updates."""
        weights = self._learner.weights()
        self.engines.set_weights(weights, policy_version)
        of_learner = weight_digest(weights.items(), self._dtype)
        self._held += [(LEARNER, policy_version, of_learner)]
        self._held += [("engine_0", policy_version, self.engines.digest)]

    def held_weights(self) -> list[tuple[str, int, str]]:
        """Returns which weights learner and engine had since the last call, see `receipt.py`."""
        held = self._held
        self._held = []
        return held

    def snapshot(self) -> int:
        """Copies what a checkpoint holds."""
        with out_of_memory_as("save"):
            return self._learner.snapshot()

    def write_snapshot(self, folder: Path) -> None:
        """Writes the last snapshot to an empty or new folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self._learner.write_snapshot(folder)
