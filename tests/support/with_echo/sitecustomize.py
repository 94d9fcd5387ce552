"""Puts `tests.support.echo` into ENVS.

Python imports this at the start of each process whose PYTHONPATH holds this folder: a run's own
processes, and those of Ray.
"""

from __future__ import annotations

from rl_core.envs import ENVS
from tests.support.echo.env import ECHO

ENVS[ECHO.name] = ECHO
