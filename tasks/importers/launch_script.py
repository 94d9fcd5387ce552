"""Turns a verl or TinyZero launch script into a preset of ours, and says what is wrong with it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from tasks.importers.shell_script import Command, Script, Word, read_script
from tasks.importers.verl_idle import meaning, plain_names
from tasks.importers.verl_rules import translate
from tasks.importers.verl_settings import SAME, TOGETHER
from tasks.importers.verl_values import Given, Settings, at, nested
from tasks.preflight_checks.finding import Finding

_SETTING = re.compile(r"^\+{0,2}(?P<key>[A-Za-z_]\w*(?:\.[\w-]+)+)=(?P<value>.*)$", re.DOTALL)
_INTERPOLATED = re.compile(r"\$\{([\w.]+)\}")
_KNOWN: Final = (*SAME, *TOGETHER, *plain_names())


@dataclass(frozen=True)
class Imported:
    """A script as settings of ours."""

    settings: Settings
    """Our dotted keys; a preset holds these."""
    findings: list[Finding]

    def preset(self, source: str) -> str:
        """Returns the settings as the text of a preset file."""
        head = f"# @package _global_\n# Made from {source} by countdown-train import.\n"
        settings = dict(self.settings)
        env = settings.pop("env.name")
        choice = {"defaults": [{"override /env": env}]}
        return head + yaml.safe_dump(choice | nested(settings), sort_keys=False)


def import_script(
    text: str,
    variables: Mapping[str, str] | None = None,
    shell: Mapping[str, str] | None = None,
) -> Imported:
    """Returns what a launch script asks for, in our settings, and what is wrong with it.

    Args:
        text: the script.
        variables: set outside the script and named by the user, who wants to hear of one that
            changes nothing.
        shell: the environment beside them.

    Raises:
        ValueError: no command in it looks like a trainer's.
    """
    variables, shell = variables or {}, shell or {}
    script = read_script(text, {**shell, **variables})
    command, stray = _training_command(script)
    given, doubles = _settings(_words(script))
    findings = [*_shell_findings(script, command, stray), *doubles]
    findings += _variable_findings(script, given, variables)
    findings += _inherited(text, script, variables, shell)
    known = {key: one for key, one in given.items() if "$" not in one.value}
    settings, more = translate(known, command.line)
    findings += [*more, *_key_findings(given)]
    return Imported(settings, sorted(findings, key=_line))


def import_settings(values: Mapping[str, Any]) -> Imported:
    """Returns verl's settings, by dotted key as its log holds them, in ours."""
    given = {
        key: Given("null" if value is None else str(value), line)
        for line, (key, value) in enumerate(values.items(), start=1)
    }
    return Imported(*translate(given, 1))


def _line(finding: Finding) -> int:
    return int(finding.check.removeprefix("line "))


def _training_command(script: Script) -> tuple[Command, list[Word]]:
    """Returns the command that trains, and settings cut off from it: commands of their own."""
    named = [any("main_ppo" in word.text for word in command.words) for command in script.commands]
    # Text that is no script, and shows commands, has settings too: none of verl's, or ours.
    counts = [
        sum(map(_is_setting, command.words)) if is_named or _is_verls(command) else 0
        for command, is_named in zip(script.commands, named, strict=True)
    ]
    if not any(counts):
        raise ValueError(
            "no settings were found: a launch script has a command with some of verl's, like "
            "data.train_batch_size=256"
        )
    chosen = named.index(True) if any(named) else counts.index(max(counts))
    stray = [
        word
        for command in script.commands[chosen + 1 :]
        if _is_setting(command.words[0])
        for word in command.words
    ]
    return script.commands[chosen], stray


def _is_verls(command: Command) -> bool:
    """Says whether a setting is one that verl has, and the command none of ours."""
    keys = [match["key"] for word in command.words if (match := _SETTING.match(word.text))]
    return Path(command.words[0].text).name != "countdown-train" and any(map(_is_known, keys))


def _is_known(key: str) -> bool:
    return _has_meaning(key) or meaning(key, "") is not None


def _is_setting(word: Word) -> bool:
    return _SETTING.match(word.text) is not None


def _shell_findings(script: Script, command: Command, stray: list[Word]) -> Iterator[Finding]:
    for line in script.broken_lines:
        lost = sum(map(_is_setting, stray))
        yield at(
            line,
            "ends in a backslash and a blank, so the command ends here"
            + (f" and loses {lost} settings, from {stray[0].text!r} on" if lost else ""),
            "delete the blank; the preset has all of them",
        )
    all_piped = [c for c in script.commands if "tee" in c.piped_into]
    if all_piped and not script.has_pipefail:
        yield at(
            all_piped[0].line,
            "its exit code is tee's: a crash looks like success",
            "set -o pipefail; here log.txt is written anyway and the run's state tells the truth",
        )


def _variable_findings(
    script: Script, given: Mapping[str, Given], variables: Mapping[str, str]
) -> Iterator[Finding]:
    """What is said of variables that the script wants from outside, one line for each."""
    unset = dict(script.unset_variables)
    for name, line in unset.items():
        lost = [key for key, one in given.items() if _uses(one, name)]
        if lost:
            yield at(
                line,
                f"${name} is not set in this script, so {', '.join(lost)} cannot be read",
                f"give it: countdown-train import SCRIPT {name}=VALUE",
                is_grave=any(map(_has_meaning, lost)),
            )
    for key, one in given.items():
        if "$" in one.value and _has_meaning(key) and not any(_uses(one, name) for name in unset):
            yield at(one.line, f"{key}={one.value} is known only when it runs", "left out")
    for name, value in variables.items():
        if name in script.assigned:
            said = f"{name}={value} is given, and the script sets it itself"
            yield at(script.assigned[name], said, "the script's value holds: change it there")
        elif name not in dict(script.outer_variables):
            nearest = difflib.get_close_matches(name, script.askable, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else "leave it out"
            yield at(1, f"{name}={value} is given, and the script uses no such variable", hint)


def _inherited(
    text: str, script: Script, given: Mapping[str, str], shell: Mapping[str, str]
) -> Iterator[Finding]:
    """Names the variables of this shell without which the script would ask for something else."""
    for name, line in script.outer_variables:
        others = {key: value for key, value in {**shell, **given}.items() if key != name}
        if name not in (*given, *_OF_ANY_SHELL) and (
            _settings(_words(read_script(text, others)))[0] != _settings(_words(script))[0]
        ):
            said = f"${name} is taken from this shell"
            yield at(line, said, f"{name}=VALUE gives another", is_grave=False)


_OF_ANY_SHELL: Final = ("HOME", "PWD", "USER")


def _words(script: Script) -> list[Word]:
    command, stray = _training_command(script)
    return [*command.words, *stray]


def _has_meaning(key: str) -> bool:
    return key in SAME or key in TOGETHER


def _uses(one: Given, name: str) -> bool:
    return re.search(rf"\$\{{?{re.escape(name)}\b", one.value) is not None


def _settings(words: list[Word]) -> tuple[dict[str, Given], list[Finding]]:
    """Returns the settings, the last of each key, and what is said of doubles."""
    given: dict[str, Given] = {}
    findings = []
    for word in words:
        match = _SETTING.match(word.text)
        if match is None:
            continue
        key, value = match["key"], match["value"]
        if key in given:
            before = given[key]
            findings.append(
                at(
                    word.line,
                    f"{key} is given twice, {before.value} in line {before.line} and {value} here",
                    f"the last one wins: {value}",
                )
            )
        given[key] = Given(value, word.line)
    return {key: Given(_resolved(one, given), one.line) for key, one in given.items()}, findings


def _resolved(one: Given, given: Mapping[str, Given]) -> str:
    """Returns a value with other settings in it, `${data.train_batch_size}`, put in."""

    def value_of(match: re.Match[str]) -> str:
        return given[match[1]].value if match[1] in given else match[0]

    return _INTERPOLATED.sub(value_of, one.value)


def _key_findings(given: Mapping[str, Given]) -> Iterator[Finding]:
    """What is said of keys that do nothing, by the reason, and of those that nobody knows."""
    idle: dict[str, list[str]] = {}
    for key, one in given.items():
        if _has_meaning(key):
            continue
        found = meaning(key, one.value)
        if found is None:
            nearest = difflib.get_close_matches(key, _KNOWN, n=1, cutoff=0.6)
            hint = f"did you mean {nearest[0]}?" if nearest else "left out of the preset"
            yield at(one.line, f"{key} is no setting that verl is known to have", hint)
        elif found[1]:
            yield at(one.line, f"{key}={one.value} has no equivalent here", found[0])
        else:
            idle.setdefault(found[0], []).append(key)
    for reason, keys in idle.items():
        does = "does" if len(keys) == 1 else "do"
        said = f"{', '.join(keys)} {does} nothing here"
        yield at(given[keys[0]].line, said, reason, is_grave=False)
