"""Reads the arguments of verl's program as Hydra does: KEY=VALUE, +KEY, ~KEY, groups and sweeps."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from tasks.importers.shell_script import Word
from tasks.importers.verl_table import Given, finding
from tasks.preflight_checks import Finding

_SETTING: Final = re.compile(
    r"\+{0,2}(?P<key>[A-Za-z_]\w*(?:(?:\.[\w-]+)+|(?==\{)))=(?P<value>.*)", re.DOTALL
)
_TAKEN_AWAY: Final = re.compile(r"~(?P<key>[\w./@:-]+)(?:=.*)?", re.DOTALL)
_GROUP: Final = re.compile(r"\+{0,2}[A-Za-z_][\w/@.:-]*=.*", re.DOTALL)
_IDLE: Final = re.compile(
    r"\+{0,2}hydra[/.].*|model_engine=(?:dp|fsdp2?)|-m|--multirun|\\\\|\$\{?[@*].*"
)
_OPTION: Final = re.compile(
    r"--?(config-name|cn|config-path|cp|config-dir|cd)(?:=(.*))?", re.DOTALL
)
_VERLS_OWN: Final = re.compile(r"(ppo_\w*trainer(\.ya?ml)?|(.*/)?config/?)?")
_SWEEP: Final = re.compile(
    r"(choice|range|interval|glob|shuffle|sort)\(.*|[^\[{('\",$][^\[{('\"$]*,.*", re.DOTALL
)
_INTERPOLATED: Final = re.compile(r"\$\{([\w.]+)\}")
_LONGEST: Final = 10_000  # characters of a word that Hydra's own parser is given


@dataclass
class Overrides:
    """What the arguments set, of each key the last, and the notes on them."""

    given: dict[str, Given] = field(default_factory=dict)
    taken_away: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    unread: list[Finding] = field(default_factory=list)  # what these set is not known

    def set(self, key: str, value: str, line: int) -> None:
        """Notes a setting, and what it replaces."""
        if first := self.given.get(key):
            self.findings.append(
                finding(
                    "given_twice",
                    line,
                    key=key,
                    value=value,
                    first=first.value,
                    first_line=first.line,
                )
            )
        self.given[key] = Given(value, line)
        self.taken_away.discard(key)

    def take_away(self, key: str, line: int) -> None:
        """Notes that verl has no value for a key, or for those of a section."""
        self.given = {k: v for k, v in self.given.items() if not f"{k}.".startswith(f"{key}.")}
        self.taken_away.add(key)
        self.findings.append(finding("taken_away", line, key=key))


def read_overrides(words: list[Word]) -> Overrides:
    """Returns what the arguments of verl's program set."""
    read = Overrides()
    rest = iter(words)
    for word in rest:
        text = word.text
        if (match := _SETTING.fullmatch(text)) is not None:
            _read_value(read, match["key"], match["value"], word.line)
        elif (match := _TAKEN_AWAY.fullmatch(text)) is not None:
            read.take_away(match["key"], word.line)
        elif (match := _OPTION.fullmatch(text)) is not None:
            name = next(rest, Word("", word.line)).text if match[2] is None else match[2]
            if not _VERLS_OWN.fullmatch(name.strip("'\"")):
                read.unread.append(finding("configuration", word.line, name=name))
        elif not _IDLE.fullmatch(text):
            sentence = "group" if _GROUP.fullmatch(text) else "word"
            read.unread.append(finding(sentence, word.line, text=text[:80]))
    # A value may name another setting: ${data.train_batch_size}.
    given = read.given
    value_of = lambda match: given[match[1]].value if match[1] in given else match[0]  # noqa: E731
    read.given = {
        key: Given(_INTERPOLATED.sub(value_of, one.value), one.line) for key, one in given.items()
    }
    return read


def _read_value(read: Overrides, key: str, value: str, line: int) -> None:
    if _SWEEP.fullmatch(value):
        read.taken_away.add(key)  # no single value, and none of verl's defaults either
        read.given.pop(key, None)
        read.findings.append(finding("sweep", line, key=key, value=value[:80]))
    elif value.startswith("{") and value != "{}":
        try:
            parsed = OverridesParser.create().parse_override(f"{key}={value[:_LONGEST]}").value()
        except (HydraException, RecursionError, ValueError):
            read.unread.append(finding("word", line, text=f"{key}={value}"[:80]))
            return
        for name, text in _leaves(key, parsed):
            read.set(name, text, line)
    else:
        read.set(key, value, line)


def _leaves(key: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, part in value.items():
            yield from _leaves(f"{key}.{name}", part)
    else:
        yield key, Override._get_value_element_as_str(value)
