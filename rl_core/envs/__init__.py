"""Families of problems; torch is never imported.

An env is one class derived from `TextEnv`. Its file or folder holds all code that names it, except
the list `ENVS`. Your own env is named by its module: see `find_env`.
"""

from importlib import import_module
from typing import Final

from rl_core.envs.countdown import Countdown
from rl_core.envs.custom import Custom
from rl_core.envs.gsm8k import Gsm8k
from rl_core.envs.number_questions import NumberQuestions
from rl_core.envs.reasoning_gym import ReasoningGym
from rl_core.envs.text_env import TextEnv
from rl_core.envs.tool_env import tool_env_of
from rl_core.envs.verifiers_env import LOADER, verifiers_env_of
from rl_core.system.named_code import is_tool_class

ENVS: Final[dict[str, type[TextEnv]]] = {
    "countdown": Countdown,
    "gsm8k": Gsm8k,
    "custom": Custom,
    "reasoning_gym": ReasoningGym,
    "number_questions": NumberQuestions,
}
"""By the name that `env=NAME` chooses; the first is the default. `find_env` adds to them."""
DEFAULT_ENV: Final = next(iter(ENVS))


def find_env(name: object, *, imports: bool = True) -> type[TextEnv]:
    """Returns the env of a name: one of ours, or `package.module:CLASS`; else ValueError.

    Without `imports` no module is loaded: the name may come from somebody else's file.
    """
    if not isinstance(name, str) or (name not in ENVS and ":" not in name):
        raise ValueError(f"env.name={name!r} is no env (there are: {', '.join(ENVS)})")
    if name not in ENVS:
        if not imports:
            raise ValueError(
                f"env.name={name} names code, which no run's folder may have imported: add "
                f"env={name} to the command if you trust it"
            )
        ENVS[name] = _load(name)
    return ENVS[name]


def _load(name: str) -> type[TextEnv]:
    module, _, attribute = name.partition(":")
    try:
        env = getattr(import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        raise ValueError(f"env={name} cannot be loaded: {type(error).__name__}: {error}") from error
    if is_tool_class(env) and not issubclass(env, TextEnv):
        try:
            env = tool_env_of(env)
        except (ValueError, NameError) as error:
            raise ValueError(f"env={name} cannot be used: {error}") from None
    if attribute == LOADER and not isinstance(env, type):
        env = verifiers_env_of(env)
    if not (isinstance(env, type) and issubclass(env, TextEnv)):
        raise ValueError(
            f"env={name} must be a class of TextEnv, not {type(env).__name__} (or a class of tools "
            "with a method `reset`)"
        )
    if not env.makes_problems() and env.rows.read is None:
        raise ValueError(f"env={name} has no method `problems`")
    if env.score is TextEnv.score:
        raise ValueError(f"env={name} has no method `score`")
    own_name = env.model_fields["name"].default
    if own_name != name:
        raise ValueError(
            f"env={name} calls itself {own_name!r}: the default of its settings' `name` must be "
            f"{name!r}, under which every process of a run finds it"
        )
    return env
