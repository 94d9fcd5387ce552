"""The section `env` of a run: the settings of whichever family of problems its `name` chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator

from rl_core.envs import find_env
from rl_core.envs.text_env import TextEnv


def _of_its_env(value: Any, validate: ValidatorFunctionWrapHandler) -> TextEnv:
    """Returns the settings as the model of the env that they name, which checks them."""
    if isinstance(value, TextEnv) or not isinstance(value, Mapping):
        checked: TextEnv = validate(value)
        return checked
    env = find_env(value.get("name"), imports=False)
    settings = env.model_validate(value)
    if settings.max_turns > 1 and not env.overrides(TextEnv.reply):
        raise ValueError(
            f"env.max_turns={settings.max_turns}: env={settings.name} answers no response, so it "
            "must be 1"
        )
    return settings


EnvConfig = Annotated[SerializeAsAny[TextEnv], WrapValidator(_of_its_env)]
