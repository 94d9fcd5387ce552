"""One KEY=VALUE of a launch script, read as Hydra reads it, and what is said of its line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from tasks.preflight_checks.finding import Finding

Settings = dict[str, Any]
"""Our dotted keys and their values."""


@dataclass(frozen=True)
class Given:
    """The value of one setting of a script, and where it stands."""

    value: str
    line: int
    """Counted from 1."""

    @property
    def plain(self) -> Any:
        """The value as Hydra reads it: number, boolean, null, list, else the text."""
        if re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", self.value):
            return float(self.value)  # YAML wants a point in 1e-6
        try:
            value = yaml.safe_load(self.value)
        except yaml.YAMLError:
            return self.value
        if value == "None":  # as Python prints it
            return None
        is_plain = isinstance(value, bool | int | float | str | list) or value is None
        return value if is_plain else self.value

    @property
    def is_number(self) -> bool:
        """Whether it is one (true and false are none)."""
        return isinstance(self.plain, int | float) and not isinstance(self.plain, bool)


def number(given: Mapping[str, Given], key: str) -> int | float | None:
    """Returns a setting that is a number above 0, else None (verl writes -1 for none)."""
    one = given.get(key)
    return one.plain if one is not None and one.is_number and one.plain > 0 else None


def count(given: Mapping[str, Given], key: str) -> int | None:
    """Returns a setting that is a whole number above 0, else None."""
    value = number(given, key)
    return value if isinstance(value, int) else None


def is_true(given: Mapping[str, Given], key: str) -> bool:
    """Says whether a setting is there and true."""
    return key in given and given[key].plain is True


def at(line: int, message: str, remedy: str, *, is_grave: bool = True) -> Finding:
    """Returns what is said of a line of the script; mistakes are grave."""
    return Finding(f"line {line}", "warning" if is_grave else "ok", message, remedy)


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns dotted keys as sections within sections."""
    sections: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        section = sections
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return sections
