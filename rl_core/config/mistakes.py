"""Mistakes in settings in one line: key, value, limit and the nearest valid key."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final

from pydantic_core import ErrorDetails

from rl_core.config.run import RunConfig
from rl_core.envs import ENVS
from rl_core.system.words import in_one_line

MOVED: Final[Mapping[str, str]] = {
    "env.reward_env": "reward.env",
    "env.reward_memory_mib": "reward.memory_mib",
    "env.reward_timeout_s": "reward.timeout_s",
    "env.reward_workers": "reward.workers",
}
"""Where settings of earlier checkouts are now."""
_LIMITS: Final[Mapping[str, str]] = {
    "model_type": "is a group of settings: write NAME: VALUE below it, or leave it out",
    "path_type": "must be a path",
    "string_pattern_mismatch": "must be package.module:function",
    "tuple_type": "must be a list, [a,b]",
}
"""What is said in place of pydantic's words, by the type of its error."""
_NAME: Final = "use letters, digits, `.`, `_` and `-`, and begin with a letter or a digit"
_FORMS: Final[Mapping[str, str]] = {
    "budget.currency": "use 1 to 8 characters, without a blank",
    "data.name": _NAME,
    "run_id": _NAME,
}
"""The same for texts of a form of their own, by key."""


def leaves(tree: Mapping[Any, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of nested settings under their dotted names."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


@cache
def known_keys(env: str) -> tuple[str, ...]:
    """Returns the dotted keys that a user may set under an env, in the order of the models."""
    settings = RunConfig(env=ENVS[env]()).model_dump(mode="json", exclude={"preset"})
    return tuple(key for key, _ in leaves(settings) if key != "env.name")


def key_of(error: ErrorDetails) -> str:
    """Returns the dotted key: without the index in a list."""
    return ".".join(part for part in error["loc"] if isinstance(part, str))


def explain(error: ErrorDetails, env: str) -> str:
    """Returns `key=value: limit` for one of pydantic's errors, or our own validator's words."""
    if error["type"] == "value_error":
        return in_one_line(error["msg"].removeprefix("Value error, "))
    key = key_of(error)
    value = error["input"]
    if error["type"] == "extra_forbidden":
        if "." in str(error["loc"][-1]):
            section, _, name = key.partition(".")
            return f"in a file {key!r} is written as `{section}:` and `{name}:` below it"
        if key in MOVED:
            return f"{key} is called {MOVED[key]} now"
        if any(key in known_keys(name) for name in ENVS):
            return of_another_env(key, env)
        return f"unknown setting {key!r}{nearest(key, known_keys(env))}"
    limit = _LIMITS.get(error["type"]) or in_one_line(error["msg"])
    if error["type"] == "string_pattern_mismatch":
        limit = _FORMS.get(key, limit)
    if value is None or isinstance(value, bool):
        value = json.dumps(value)  # as the user writes it
    if error["type"] == "literal_error" and isinstance(value, str):
        names = error["ctx"]["expected"].replace(" or ", ", ")
        limit += nearest(value, names.strip("'").split("', '"))
    return f"{key}={value}: {limit}"


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
