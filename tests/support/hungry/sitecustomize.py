"""Gives a learner without gradient checkpointing no memory after its first steps.

Python imports this at the start of each process whose PYTHONPATH holds this folder: real errors of
torch's allocator, in a run that a worker started.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

STEPS_BEFORE = int(os.environ["HUNGRY_AFTER_STEPS"])
_NOBODY_HAS_BYTES = 2**50


class _HungryLearner(MetaPathFinder):
    """Changes the learner's class when its module is imported, and then steps aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "rl_core.learner.learner":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            _make_hungry(module.Learner)

        loader.exec_module = execute_and_change
        return spec


def _make_hungry(learner: Any) -> None:
    import torch

    learn = learner.learn

    def keep(tensor: Any) -> Any:
        torch.empty(_NOBODY_HAS_BYTES, dtype=torch.uint8)

    def hungry_learn(self: Any, batch: Any) -> Any:
        if self.steps_done < STEPS_BEFORE or self.config.model.gradient_checkpointing:
            return learn(self, batch)
        # Where a forward pass keeps its first tensor, through whichever code it goes.
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            return learn(self, batch)

    learner.learn = hungry_learn


sys.meta_path.insert(0, _HungryLearner())
