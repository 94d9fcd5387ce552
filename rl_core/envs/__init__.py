"""Families of problems, a folder and a record each; never torch.

To add one: a folder with its settings (a model derived from `EnvSettings`) and its record (an `Env`
of functions), and a line in `ENVS`. What knows a family by its name is in its folder, all of it:
settings, generator, prompts, rows, scores, checks, examples for a base model.
"""

from __future__ import annotations

from typing import Any, Final

from rl_core.envs.countdown.env import COUNTDOWN
from rl_core.envs.gsm8k.env import GSM8K
from rl_core.envs.record import Env
from rl_core.envs.settings import EnvSettings

ENVS: Final[dict[str, Env[Any]]] = {env.name: env for env in (COUNTDOWN, GSM8K)}
"""By the name that `env=NAME` chooses; the first is the default."""
DEFAULT_ENV: Final = COUNTDOWN.name


def env_of(settings: EnvSettings) -> Env[Any]:
    """Returns the record of the env that has these settings."""
    return ENVS[settings.name]
