"""What verl's settings mean here (the tables of `verl.yaml`), and which of them a script sets."""

import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import yaml

from rl_core.system.words import without_middle
from tasks.preflight_checks import Finding

Settings = dict[str, Any]  # our dotted keys and their values
TABLE: Final[dict[str, Any]] = yaml.load(
    Path(__file__).with_name("verl.yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),  # 40 times as fast
)
SAME: Final[dict[str, str]] = TABLE["same"]  # verl's key -> ours, with the same meaning
NEAREST: Final[dict[str, str]] = TABLE["nearest"]  # verl's key -> the nearest of ours
NAMES: Final = SAME | NEAREST
VALUES: Final[dict[str, dict[str, str]]] = TABLE["values"]  # ours -> verl's value -> our value
_PATTERNS: Final = [
    (pattern, reason, table)
    for table in ("lacking", "idle")
    for reason, patterns in TABLE[table].items()
    for pattern in patterns.split()
]
_LONGEST_VALUE: Final = 100  # characters of a value in a message
CHAT_ARGS: Final = "data.apply_chat_template_kwargs."
_EARLY: Final = TABLE["before_2025_04"].split()
PLAIN_NAMES: Final = (*NAMES, *(pattern for pattern, _, _ in _PATTERNS if "*" not in pattern))
"""All names that are spelled out: one of them is suggested in place of a misspelt one."""


def has_meaning(key: str) -> bool:
    """Returns whether a setting of verl becomes one of ours."""
    return key in NAMES or key.startswith(CHAT_ARGS)


def meaning(key: str, value: str) -> tuple[str, bool] | None:
    """Returns why a setting of verl does nothing here, and whether it asks for what is lacking."""
    asks = value.strip(" '\"").lower() not in TABLE["asks_for_nothing"]
    matches = ((why, table) for pattern, why, table in _PATTERNS if fnmatchcase(key, pattern))
    return next(((why, asks and table == "lacking") for why, table in matches), None)


def is_known(key: str) -> bool:
    """Returns whether it is a setting of verl's."""
    return has_meaning(key) or meaning(key, "") is not None


@dataclass(frozen=True)
class Given:
    """The value of one of verl's settings, and where it stands."""

    value: str
    line: int

    @property
    def is_unread(self) -> bool:
        """Whether its value is known only when the script runs: `$NAME`, `$(...)`, back-ticks."""
        return not {"$", "`"}.isdisjoint(self.value)

    @property
    def plain(self) -> Any:
        """The value as Hydra reads it: number, boolean, null, list, else the text."""
        if re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", self.value):
            return float(self.value)  # for YAML, 1e-6 has no point and is a text
        if {"&", "!"} & {*self.value}:
            return self.value  # YAML's anchors and tags, which Hydra does not have
        try:
            value = yaml.safe_load(self.value)
        except (yaml.YAMLError, ValueError, RecursionError):
            return self.value
        if value == "None":  # as Python prints it
            return None
        return value if isinstance(value, bool | int | float | str | list | None) else self.value


@dataclass
class ScriptSettings:
    """A script's settings; the rules add ours and their findings."""

    given: dict[str, Given]
    unread: dict[str, Given]  # with values that only running the script would tell
    line: int  # the command's first
    taken_away: frozenset[str] = frozenset()  # keys and sections without any value
    is_partial: bool = False  # something that is not read may set any of the others
    assumed: Settings = field(default_factory=dict)  # ours that only stand in for what is unknown
    settings: Settings = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def say(self, sentence: str, key: str = "", /, **facts: Any) -> None:
        """Adds what `verl.yaml` says of one of verl's settings, or of the whole command."""
        one = self.given.get(key) or self.unread.get(key) or Given("", self.line)
        value = without_middle(one.value, _LONGEST_VALUE)
        self.findings.append(finding(sentence, one.line, key=key, **({"value": value} | facts)))

    @cached_property
    def is_recent(self) -> bool:
        """Whether a setting, or `k3+`, shows that its verl is of April 2025 or later."""
        return any(
            ("kl_" in key and one.value.endswith("+"))
            or (is_known(key) and not any(fnmatchcase(key, pattern) for pattern in _EARLY))
            for key, one in (self.given | self.unread).items()
        )

    def is_taken_away(self, key: str) -> bool:
        """Returns whether a setting, or a section around it, has no value."""
        return any(f"{key}.".startswith(f"{name}.") for name in self.taken_away)

    def may_be_set(self, key: str) -> bool:
        """Returns whether a setting may have a value that is not known."""
        return key not in self.given and (
            self.is_partial or key in self.unread or self.is_taken_away(key)
        )

    def plain(self, key: str) -> Any:
        """Returns the value of one of verl's settings; None if it is null or not given."""
        return self.given[key].plain if key in self.given else None

    def number(self, key: str) -> int | float | None:
        """Returns a number above 0, else None (verl writes -1 for none)."""
        value = self.plain(key)
        return value if is_number(value) and value > 0 else None

    def count(self, key: str) -> int | None:
        """Returns a whole number above 0, else None."""
        value = self.number(key)
        return value if isinstance(value, int) else None

    def is_true(self, key: str) -> bool:
        """Returns whether a setting is given and true."""
        return self.plain(key) is True


def is_number(value: object) -> bool:
    """Returns whether a value is a number (true and false are none)."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def finding(sentence: str, line: int, /, **facts: Any) -> Finding:
    """Returns what `verl.yaml` says of a line of the script; mistakes are warnings."""
    level: Literal["warning", "ok"] = "warning" if sentence in TABLE["mistakes"] else "ok"
    message, remedy = TABLE["mistakes"].get(sentence) or TABLE["notes"][sentence]
    return Finding(f"line {line}", message.format(**facts), remedy.format(**facts), level=level)
