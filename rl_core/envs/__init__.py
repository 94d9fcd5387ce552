"""Families of problems; never torch.

An env of questions in words is one class, a `TextEnv`. Others are a folder with settings (a model
derived from `EnvSettings`) and a record (an `Env` of functions). What knows a family by its name
is in its file or folder, all of it; only `ENVS` lists them. Another package offers its env as an
entry point, or is named: see `find_env`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rl_core.envs.countdown.env import COUNTDOWN
from rl_core.envs.custom import CUSTOM
from rl_core.envs.gsm8k.env import GSM8K
from rl_core.envs.number_questions import NUMBER_QUESTIONS
from rl_core.envs.reasoning_gym.env import REASONING_GYM
from rl_core.envs.record import Env
from rl_core.envs.settings import EnvSettings
from rl_core.envs.text_env import TextEnv

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

ENVS: Final[dict[str, Env[Any]]] = {
    env.name: env for env in (COUNTDOWN, GSM8K, CUSTOM, REASONING_GYM, NUMBER_QUESTIONS)
}
"""By the name that `env=NAME` chooses; the first is the default. `find_env` adds to them."""
DEFAULT_ENV: Final = COUNTDOWN.name
ENTRY_POINTS: Final = "countdown_train.envs"
"""The group of entry points by which installed packages offer theirs."""


def env_of(settings: EnvSettings) -> Env[Any]:
    """Returns the record of the env that has these settings."""
    return find_env(settings.name)


def env_names() -> list[str]:
    """Returns the names of all envs, with those that installed packages offer."""
    return list(dict.fromkeys([*ENVS, *sorted(_offered().names)]))


def find_env(name: object, *, imports: bool = True) -> Env[Any]:
    """Returns the env that a run names, from whichever package has it.

    Args:
        name: of ours, of an entry point, or `package.module:ENV`.
        imports: whether a module that nobody has named yet in this process may be imported: not
            where a file says so, which may be somebody else's.

    Raises:
        ValueError: there is none of this name, or it cannot be loaded.
    """
    if not isinstance(name, str) or name not in ENVS:
        if isinstance(name, str) and ":" in name and not imports:
            raise ValueError(
                f"env.name={name} names code, which no run's folder may have imported: add "
                f"env={name} to the command if you trust it"
            )
        env = _load(name)
        ENVS[env.name] = env
        return env
    return ENVS[name]


def _offered() -> EntryPoints:
    """Returns what installed packages offer: to look through all of them takes a while."""
    from importlib.metadata import entry_points

    return entry_points(group=ENTRY_POINTS)


def _load(name: object) -> Env[Any]:
    from importlib.metadata import EntryPoint

    if isinstance(name, str) and ":" in name:
        found = [EntryPoint(name, name, ENTRY_POINTS)]
    else:
        found = [point for point in _offered() if point.name == name]
    if not found:
        raise ValueError(f"env.name={name!r} is no env (there are: {', '.join(env_names())})")
    try:
        env = found[0].load()
    except Exception as error:  # whatever a module of somebody else's does
        raise ValueError(f"env={name} cannot be loaded: {type(error).__name__}: {error}") from error
    if isinstance(env, type) and issubclass(env, TextEnv):
        for method in ("problems", "score"):
            if getattr(env, method) is getattr(TextEnv, method):
                raise ValueError(f"env={name} has no method `{method}`")
        env = env.record()
    if not isinstance(env, Env):
        raise ValueError(
            f"env={name} must be a class of TextEnv or a record, an Env, not {type(env).__name__}"
        )
    if env.name != name:
        raise ValueError(
            f"env={name} calls itself {env.name!r}: the default of its settings' `name` must be "
            f"{name!r}, under which every process of a run finds it"
        )
    return env
