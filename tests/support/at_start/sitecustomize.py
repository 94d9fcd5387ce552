"""What a test changes in the processes of a run, from their very start.

Python imports this in each process whose PYTHONPATH holds this folder, in those of Ray too. The
environment says what is wanted: HUNGRY_AFTER_STEPS=N gives a learner without gradient
checkpointing no memory after its first steps, by real errors of torch's allocator; WITH_ECHO=1
puts `tests.support.echo` into ENVS.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_NOBODY_HAS_BYTES = 2**50


class _After(MetaPathFinder):
    """Changes a module when it is imported, and then steps aside."""

    def __init__(self, module: str, change: Callable[[Any], None]) -> None:
        self._module, self._change = module, change

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_change(module: ModuleType) -> None:
            execute(module)
            self._change(module)

        loader.exec_module = execute_and_change
        return spec


def _add_echo(envs: Any) -> None:
    from tests.support.echo.env import ECHO

    envs.ENVS[ECHO.name] = ECHO


def _make_hungry(module: Any) -> None:
    import torch

    learner = module.Learner
    steps_before = int(os.environ["HUNGRY_AFTER_STEPS"])
    update = learner.update

    def ask(module: Any, inputs: Any) -> None:
        if torch.is_grad_enabled():
            torch.empty(_NOBODY_HAS_BYTES, dtype=torch.uint8)

    def hungry_update(self: Any, experience: Any) -> dict[str, float]:
        if self.steps_done < steps_before or self.config.model.gradient_checkpointing:
            return update(self, experience)
        handle = self.models.actor.get_decoder().layers[-1].mlp.register_forward_pre_hook(ask)
        try:
            return update(self, experience)
        finally:
            handle.remove()

    learner.update = hungry_update


if "HUNGRY_AFTER_STEPS" in os.environ:
    sys.meta_path.insert(0, _After("rl_core.learner.learner", _make_hungry))
if "WITH_ECHO" in os.environ:
    sys.meta_path.insert(0, _After("rl_core.envs", _add_echo))
