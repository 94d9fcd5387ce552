"""Which settings there are, and what a mistaken name may have meant; without Hydra, for TAB."""

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from flows.errors import BadInputError
from rl_core.config.run import RunConfig
from rl_core.envs import ENVS, find_env
from rl_core.runs.settings_file import REMOVED, leaves
from rl_core.system.words import in_one_line

CONF: Final = Path(__file__).parent / "conf"
PRESETS: Final = tuple(sorted(file.stem for file in (CONF / "preset").glob("*.yaml")))
if TYPE_CHECKING:
    PresetName = str
else:
    PresetName = Literal[PRESETS]  # so that Prefect's form offers them as a list

CHOICES: Final[Mapping[str, Collection[str]]] = {"preset": PRESETS, "env": ENVS}
"""What is chosen by name beside the settings."""
_MAPPING: Final = "algorithm.options"


@cache
def known_keys(env: str) -> tuple[str, ...]:
    """Returns the dotted keys that a user may set under an env, in the order of the models."""
    settings = RunConfig(env=ENVS[env]()).model_dump(mode="json", exclude={"preset"})
    return tuple(key for key, _ in leaves(settings) if key != "env.name")


def all_keys() -> tuple[str, ...]:
    """Returns the keys of all envs."""
    return tuple(dict.fromkeys(key for env in ENVS for key in known_keys(env)))


def setting_of(key: str) -> str:
    """Returns the setting that a key sets: of `algorithm.options.NAME` the whole mapping."""
    return _MAPPING if key.startswith(f"{_MAPPING}.") else key


def check_key(key: str, arguments: Sequence[str] = ()) -> None:
    """Refuses what is a setting under no env; `arguments` of a command are suggested, too."""
    known = all_keys()
    if key in known:
        return
    if key == "env.name":
        raise BadInputError(f"env.name is chosen by env=NAME (there are: {', '.join(ENVS)})")
    if key in REMOVED:
        raise BadInputError(f"{key} is no longer a setting: {REMOVED[key]}")
    if any(name.startswith(f"{key}.") for name in known):
        raise BadInputError(f"{key!r} is a group of settings: write {key}.NAME=VALUE")
    raise BadInputError(f"unknown setting {key!r}{nearest(key, (*arguments, *CHOICES, *known))}")


def check_choice(group: str, name: str) -> None:
    """Refuses a name that `preset` or `env` does not have; loads an env of a module."""
    names = CHOICES[group]
    if name not in names and not (group == "env" and ":" in name):
        there = ", ".join(names)
        raise BadInputError(f"unknown {group} {name!r}{nearest(name, names)} (there are: {there})")
    if group == "env":
        try:
            find_env(name)
        except ValueError as error:
            raise BadInputError(in_one_line(error)) from None


def of_another_env(key: str, env: str) -> str:
    """Returns the message about a setting that another env has, and this one does not."""
    others = [name for name in ENVS if key in known_keys(name)]
    return f"unknown setting {key!r} under env={env}: it belongs to env={others[0]}"


def nearest(name: str, names: Iterable[str]) -> str:
    """Returns `; did you mean X?`, alike as a whole or in its last part; of groups the actor's."""

    def likeness(candidate: str) -> tuple[float, bool, float]:
        whole = difflib.SequenceMatcher(None, name, candidate).ratio()
        last = name.rpartition(".")[2], candidate.rpartition(".")[2]
        alike = max(whole, difflib.SequenceMatcher(None, *last).ratio())
        return alike, candidate == f"actor.{name}", whole

    best = max(names, key=likeness)
    return f"; did you mean {best}?" if likeness(best)[0] >= 0.5 else ""
