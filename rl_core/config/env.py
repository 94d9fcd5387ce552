"""The section `env` of a run: the settings of whichever family of problems its `name` chooses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import SerializeAsAny, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import PydanticCustomError

from rl_core.envs import ENVS
from rl_core.envs.settings import EnvSettings


def _of_its_env(value: Any, validate: ValidatorFunctionWrapHandler) -> EnvSettings:
    """Returns the settings as the model of the env that they name, which checks them."""
    if isinstance(value, EnvSettings) or not isinstance(value, Mapping):
        checked: EnvSettings = validate(value)
        return checked
    name = value.get("name")
    if not isinstance(name, str) or name not in ENVS:
        raise PydanticCustomError(
            "unknown_env",
            "env.name={name} is no env (there are: {envs})",
            {"name": repr(name), "envs": ", ".join(ENVS)},
        )
    settings: EnvSettings = ENVS[name].settings.model_validate(value)
    return settings


EnvConfig = Annotated[SerializeAsAny[EnvSettings], WrapValidator(_of_its_env)]
