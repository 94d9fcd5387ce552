"""Families of problems; never torch.

An env is one class derived from `TextEnv`, in a file or a folder with all that knows it by its
name; only `ENVS` lists them. Another package offers its env as an entry point, or is named: see
`find_env`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rl_core.envs.countdown import CountdownConfig
from rl_core.envs.custom import CustomConfig
from rl_core.envs.gsm8k import Gsm8kConfig
from rl_core.envs.number_questions import NumberQuestionsConfig
from rl_core.envs.reasoning_gym import ReasoningGymConfig
from rl_core.envs.text_env import TextEnv

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENVS: Final[dict[str, type[TextEnv]]] = {
    "countdown": CountdownConfig,
    "gsm8k": Gsm8kConfig,
    "custom": CustomConfig,
    "reasoning_gym": ReasoningGymConfig,
    "number_questions": NumberQuestionsConfig,
}
"""By the name that `env=NAME` chooses; the first is the default. `find_env` adds to them."""
DEFAULT_ENV: Final = next(iter(ENVS))
ENTRY_POINTS: Final = "countdown_train.envs"
"""The group of entry points by which installed packages offer theirs."""
_MAKES_PROBLEMS: Final = (TextEnv.problems, TextEnv.rows_of_splits, TextEnv.make_splits)


def env_names() -> list[str]:
    """Returns the names of all envs, with those that installed packages offer."""
    return list(dict.fromkeys([*ENVS, *sorted(_offered().names)]))


def find_env(name: object, *, imports: bool = True) -> type[TextEnv]:
    """Returns the env of a name: ours, an entry point's, or `package.module:CLASS`; or ValueError.

    `imports`: whether a module that is not loaded yet may be imported: not if a file names it,
    which may be somebody else's.
    """
    if not isinstance(name, str):
        raise _no_env(name)
    if name not in ENVS:
        if ":" in name and not imports:
            raise ValueError(
                f"env.name={name} names code, which no run's folder may have imported: add "
                f"env={name} to the command if you trust it"
            )
        ENVS[name] = _load(name)
    return ENVS[name]


def _offered() -> EntryPoints:
    """Returns what installed packages offer: to look through all of them takes a while."""
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS)


def _load(name: str) -> type[TextEnv]:
    from importlib.metadata import EntryPoint

    if ":" in name:
        found = [EntryPoint(name, name, ENTRY_POINTS)]
    else:
        found = [point for point in _offered() if point.name == name]
    if not found:
        raise _no_env(name)
    try:
        env = found[0].load()
    except Exception as error:  # whatever a module of somebody else's does
        raise ValueError(f"env={name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not (isinstance(env, type) and issubclass(env, TextEnv)):
        raise ValueError(f"env={name} must be a class of TextEnv, not {type(env).__name__}")
    if env.makes_problems and not any(env.overrides(method) for method in _MAKES_PROBLEMS):
        raise ValueError(f"env={name} has no method `problems`")
    if not env.overrides(TextEnv.score):
        raise ValueError(f"env={name} has no method `score`")
    own_name = env.model_fields["name"].default
    if own_name != name:
        raise ValueError(
            f"env={name} calls itself {own_name!r}: the default of its settings' `name` must be "
            f"{name!r}, under which every process of a run finds it"
        )
    return env


def _no_env(name: object) -> ValueError:
    return ValueError(f"env.name={name!r} is no env (there are: {', '.join(env_names())})")
