"""Puts `tests.support.echo` into ENVS, once that is there.

Python imports this at the start of each process whose PYTHONPATH holds this folder: a run's own
processes, and those of Ray.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _WithEcho(MetaPathFinder):
    """Adds the record when `rl_core.envs` is imported, and then steps aside."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "rl_core.envs":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_add(module: ModuleType) -> None:
            execute(module)
            from tests.support.echo.env import ECHO

            module.ENVS[ECHO.name] = ECHO

        loader.exec_module = execute_and_add
        return spec


sys.meta_path.insert(0, _WithEcho())
