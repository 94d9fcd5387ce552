"""Which settings there are, and what a mistaken name may have meant; without Hydra, for TAB."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from flows.errors import BadInputError
from rl_core.config.mistakes import MOVED, known_keys, nearest
from rl_core.envs import ENVS, find_env
from rl_core.system.words import in_one_line

CONF: Final = Path(__file__).parent / "conf"
PRESETS: Final = tuple(sorted(file.stem for file in (CONF / "preset").glob("*.yaml")))
if TYPE_CHECKING:
    PresetName = str
else:
    PresetName = Literal[PRESETS]  # so that Prefect's form offers them as a list

CHOICES: Final[Mapping[str, Collection[str]]] = {"preset": PRESETS, "env": ENVS}
"""What is chosen by name in addition to the settings."""
_MAPPING: Final = "algorithm.options"


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
    if key in MOVED:
        raise BadInputError(f"{key} is called {MOVED[key]} now")
    if any(name.startswith(f"{key}.") for name in known):
        raise BadInputError(f"{key!r} is a group of settings: write {key}.NAME=VALUE")
    raise BadInputError(f"unknown setting {key!r}{nearest(key, (*arguments, *CHOICES, *known))}")


def check_choice(group: str, name: str) -> None:
    """Refuses a name that `preset` or `env` does not have; loads an env of a module."""
    names = CHOICES[group]
    if name not in names and not (group == "env" and ":" in name):
        raise BadInputError(
            f"unknown {group} {name!r}{nearest(name, names)} (there are: {', '.join(names)})"
        )
    if group == "env":
        try:
            find_env(name)
        except ValueError as error:
            raise BadInputError(in_one_line(error)) from None
