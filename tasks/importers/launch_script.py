"""Turns a verl or TinyZero launch script into a preset of ours, and says what is wrong with it."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

import yaml

from rl_core.system.process_env import is_secret_name
from rl_core.system.redaction import is_secret
from rl_core.system.words import did_you_mean, printable
from tasks.importers.console_log import other_trainer
from tasks.importers.hydra_words import read_overrides
from tasks.importers.shell_script import Command, Script, Word
from tasks.importers.structured import strings_of_python, words_of_yaml
from tasks.importers.verl_rules import translate
from tasks.importers.verl_table import (
    PLAIN_NAMES,
    Given,
    Settings,
    finding,
    has_meaning,
    is_known,
    meaning,
)
from tasks.preflight_checks import Finding

_STARTS_VERL = re.compile(r"main_ppo\s")
_KEY = re.compile(r"[~+]{0,2}([A-Za-z_]\w*(?:\.[\w-]+)+)(?:=|(?<=~)$)")
_BROKEN = re.compile(r"^(?!\s*#).*\\[ \t]+$")
_NO_ASSIGNMENT = re.compile(r"^\s*\$(\w+)=\S")
_NAMED: Final = re.compile(r"\$\{?(\w+)")
_SETS_NOTHING: Final = re.compile(  # of verl: what prepares a shell
    r"(activate|conda\.sh|mamba\.sh|/etc/\S*|\.(bashrc|bash_profile|profile|zshrc)|modules?\S*)"
)
_EACH: Final = ("ends_at_a_blank", "ends_at_a_comment")  # named in each line, others once
_OF_ANY_SHELL: Final = ("HOME", "PWD", "USER")
_MOST_HINTS: Final = 20  # looking for the nearest of all names takes 10 ms


class NoSettingsError(ValueError):
    """A text without a setting of verl, or of another trainer."""


@dataclass(frozen=True)
class Imported:
    """A script as settings of ours (dotted keys), and what is wrong with it."""

    settings: Settings
    findings: list[Finding]

    def preset(self, source: str) -> str:
        """Returns the settings as the text of a preset file."""
        preset: dict[str, Any] = {"defaults": [{"override /env": self.settings["env.name"]}]}
        for key, value in self.settings.items():
            section, _, name = key.partition(".")
            if key != "env.name":
                preset.setdefault(section, {})[name] = value
        head = f"# Made from {printable(source)} by countdown-train import.\n"
        return head + yaml.safe_dump(preset, sort_keys=False)


def import_script(
    text: str, variables: Mapping[str, str] | None = None, shell: Mapping[str, str] | None = None
) -> Imported:
    """Returns what a launch script asks for, in our settings, and what is wrong with it.

    `variables` are given by the user, `shell` is the environment; ValueError if nothing trains.
    """
    variables, shell = (
        {name: value for name, value in (given or {}).items() if not is_secret(name, value)}
        for given in (variables, shell)
    )
    source = _read(text.replace("\r\n", "\n").lstrip("\ufeff"), {**shell, **variables})
    overrides = read_overrides(source.words)
    given = overrides.given
    unread = [*source.unread, *overrides.unread]
    settings, of_settings = translate(
        given,
        source.command.words[0].line,
        no_defaults=overrides.taken_away,
        is_partial=bool(unread),
    )
    inherited = {name: shell[name] for name in shell.keys() - variables.keys()}
    findings = [
        *_line_findings(text if source.text else "", source),
        *_command_findings(text, source),
        *unread,
        *overrides.findings,
        *_variable_findings(source.script, given, variables),
        *_inherited(source.script, given, inherited),
        *of_settings,
        *_key_findings(given),
    ]
    return Imported(
        settings, sorted(findings, key=lambda one: int(one.check.removeprefix("line ")))
    )


@dataclass(frozen=True)
class _Source:
    """The command that trains, its words with those that were cut off from it, and the rest."""

    text: str  # of a shell; else nothing
    script: Script
    command: Command
    words: list[Word]
    cut_off: list[Command] = field(default_factory=list)
    unread: list[Finding] = field(default_factory=list)  # then nothing is said of what is not set


def _read(text: str, outer: Mapping[str, str]) -> _Source:
    """Returns what is read of a recipe, a Python program or a script, whichever it is."""
    is_verls = other_trainer(text, "script") is None
    if is_verls and _num_known(words := words_of_yaml(text)):
        return _Source("", Script(""), Command((Word("", words[0].line),), (), None), words)
    script = Script("", outer)
    strings = strings_of_python(text, script.from_outside_at)
    shell_text = next((one for one in strings if _STARTS_VERL.search(one.text)), None)
    if shell_text is not None:
        source = _of_shell("\n" * (shell_text.line - 1) + shell_text.text, outer)
        source.script.from_outside |= script.from_outside
    elif is_verls and _num_known(strings) > 1:
        words = [word for word in strings if _KEY.match(word.text)]
        source = _Source("", script, Command((words[0],), (), None), words)
    else:
        return _of_shell(text, outer)
    unread = [*source.unread, finding("python", source.command.words[0].line)]
    return replace(source, text="", unread=unread)


def _of_shell(text: str, outer: Mapping[str, str]) -> _Source:
    script = Script(text, outer)
    nexts = (*script.commands[1:], None)
    ranks = [_rank(command, after) for command, after in zip(script.commands, nexts, strict=False)]
    starts_verl = any(is_verls for is_verls, _ in ranks)
    if not starts_verl and (whose := other_trainer(text, "script")) is not None:
        raise ValueError(
            f"this is a script of {whose}, which is not read: docs/coming-from.md has a "
            "table of its settings and ours"
        )
    if (best := max(ranks, default=(False, 0))) == (False, 0):
        # As in eval "$CMD" and ssh NODE "...": a text that is shorter than what it stands in.
        words = [word for command in script.commands for word in command.words]
        texts = [(word.line, word.text.strip("`$()")) for word in words]
        shorter = [one for one in texts if len(one[1]) < len(text.lstrip("\n"))]
        inner = next((one for one in shorter if _STARTS_VERL.search(one[1])), None)
        if inner is None:
            raise _why_no_settings(text, script)
        source = _of_shell("\n" * (inner[0] - 1) + inner[1], outer)
        source.script.from_outside |= script.from_outside
        return source
    first, *later = script.commands[ranks.index(best) :]
    cut_off = [command for command in later if _KEY.match(command.words[0].text)]
    starts = (i for i, word in enumerate(first.words, 1) if "main_ppo" in word.text)
    words = list(first.words[next(starts, 0) :])
    if not starts_verl:
        words = words[next(i for i, word in enumerate(words) if _KEY.match(word.text)) :]
    words += [word for command in cut_off for word in command.words]
    return _Source(
        text, script, first, words, cut_off, [*_not_followed(script, starts_verl, first)]
    )


def _not_followed(script: Script, starts_verl: bool, command: Command) -> Iterator[Finding]:
    """Names what may set something and is not read."""
    if not starts_verl:
        texts = (word.text for word in command.words)
        yield finding(
            "program",
            command.words[0].line,
            program=" ".join(takewhile(lambda text: not _KEY.match(text), texts))[:100],
        )
    for other in script.commands:
        name, *files = (word.text for word in other.words[:2])
        if name in ("source", ".") and files and not _SETS_NOTHING.search(files[0]):
            yield finding("sourced", other.words[0].line, file=files[0])
    if script.first_error:
        yield finding("no_bash", script.first_error)


def _num_known(words: list[Word]) -> int:
    matches = (_KEY.match(word.text) for word in words)
    return sum(is_known(match[1]) for match in matches if match)


def _rank(command: Command, after: Command | None) -> tuple[bool, int]:
    """Returns whether it starts verl with settings, else how many of verl's settings it has."""
    keys = [word for word in command.words if _KEY.match(word.text)]
    if any("main_ppo" in word.text for word in command.words):
        is_cut = after is not None and _KEY.match(after.words[0].text) is not None
        return bool(keys) or is_cut, 0  # the first such command
    # A text that only shows commands has settings, too, but none of verl's, or those of ours.
    known = _num_known(keys)
    is_verls = 2 * known >= len(keys) and Path(command.words[0].text).name != "countdown-train"
    return False, known if is_verls else 0


def _why_no_settings(text: str, script: Script) -> ValueError:
    for line, code in enumerate(text.split("\n"), start=1):
        if "main_ppo" in code.partition("#")[0]:
            return ValueError(
                f"the command in line {line} stands in a text or in back-ticks, which are not "
                "read: copy the command into a file of its own and import that"
            )
    words = (word for command in script.commands for word in command.words)
    if file := next((word for word in words if word.text.endswith(".sh")), None):
        known = (f"{k}={v}" for k, v in script.values.items() if not is_secret(k, v))
        return ValueError(
            f"it starts {file.text} in line {file.line}, which is not followed: "
            f"countdown-train import {file.text} {' '.join(known)}".rstrip()
        )
    return NoSettingsError(
        "no settings were found: a launch script has a command with some of verl's, like "
        "data.train_batch_size=256"
    )


def _line_findings(text: str, source: _Source) -> Iterator[Finding]:
    """Names lines that do something else than they seem to."""
    for i, line in enumerate(text.split("\n"), start=1):
        if assigned := _NO_ASSIGNMENT.match(line):
            yield finding("assigns_nothing", i, name=assigned[1])
    settings = [word for word in source.words if _KEY.match(word.text)]
    lines = [word.line for word in settings]
    seen = set()
    for i, sentence in _ends(text, source):
        first = bisect_right(lines, i)
        lost = len(lines) - first
        if lost and (sentence in _EACH or sentence not in seen):
            loses = f" and loses {lost} settings, from {settings[first].text!r} on"
            none_left = f", and verl gets none of its {lost} settings"
            yield finding(sentence, i, loses=loses if first else none_left)
        elif sentence == "ends_at_a_blank":
            yield finding(sentence, i, loses="")
        seen.add(sentence)
    if "\r\n" in text and "ends_at_cr" not in seen:
        yield finding("lines_with_cr", 1)
    if text.startswith("\ufeff"):
        yield finding("byte_order_mark", 1)


def _ends(text: str, source: _Source) -> list[tuple[int, str]]:
    """Returns the lines at which a command ends where it seems to continue, and how."""
    ends: dict[int, str] = {}
    before = ""
    for i, line in enumerate(text.split("\n"), start=1):
        if line.endswith("\\\r"):
            ends[i] = "ends_at_cr"
        elif _BROKEN.match(line):
            ends[i] = "ends_at_a_blank"
        elif before.endswith("\\") and i in source.script.comments:
            ends[i] = "ends_at_a_comment"
        elif before.endswith("\\") and not line:
            ends[i] = "ends_at_an_empty_line"
        before = line
    if text:
        for command in (source.command, *source.cut_off):
            end = command.words[-1].line
            if not {end, end + 1} & ends.keys():
                ends[end] = "ends_without_a_backslash"
    return sorted(ends.items())


def _command_findings(text: str, source: _Source) -> Iterator[Finding]:
    """Names what hides values of the command that trains, or its exit code."""
    script = source.script
    if (around := source.command.around) is not None:
        values = "NAME=VALUE for each name that it sets"
        for call in script.commands:
            if around.text.startswith(f"{call.words[0].text}()"):
                values = " ".join(f"{i}={word.text}" for i, word in enumerate(call.words) if i)
                values += f", as in line {call.words[0].line}"
        yield finding("not_followed", around.line, text=around.text, values=values)
    for branch, names in script.branches.items():
        yield finding("first_way", branch.line, text=branch.text, names=", ".join(sorted(names)))
    all_piped = [c for c in script.commands if "tee" in c.piped_into]
    if all_piped and not re.search(r"^\s*set\b.*\bpipefail\b", text, re.MULTILINE):
        yield finding("exit_code_of_tee", all_piped[0].words[0].line)


def _variable_findings(
    script: Script, given: Mapping[str, Given], variables: Mapping[str, str]
) -> Iterator[Finding]:
    """Names variables that the script needs from outside, and given ones without effect."""
    names_in = {key: set(_NAMED.findall(one.value)) for key, one in given.items()}
    for name, line in script.unset.items():
        if lost := [key for key, names in names_in.items() if name in names]:
            say = "unset" if any(map(has_meaning, lost)) else "unset_without_a_meaning"
            say = "secret" if is_secret_name(name) else say
            yield finding(say, line, name=name, keys=", ".join(lost))
    for key, one in given.items():
        if one.is_unread and has_meaning(key) and names_in[key].isdisjoint(script.unset):
            yield finding("known_when_it_runs", one.line, key=key, value=one.value)
    for name, value in variables.items():
        if name in script.assigned:
            yield finding("set_by_the_script", script.assigned[name], name=name, value=value)
        elif name not in script.from_outside:
            hint = did_you_mean(name, script.askable).removeprefix("; ") or "leave it out"
            yield finding("no_such_variable", 1, name=name, value=value, hint=hint)


def _inherited(
    script: Script, given: Mapping[str, Given], shell: Mapping[str, str]
) -> Iterator[Finding]:
    """Names variables of this shell that stand in settings."""
    for name in sorted(script.from_outside.keys() & shell.keys() - {*_OF_ANY_SHELL}):
        if shell[name] and any(shell[name] in one.value for one in given.values()):
            yield finding("of_this_shell", script.from_outside[name], name=name)


def _key_findings(given: Mapping[str, Given]) -> Iterator[Finding]:
    """Names keys that do nothing, by the reason, and those that are not known of verl."""
    idle: dict[str, list[str]] = {}
    num_unknown = 0
    for key, one in given.items():
        if has_meaning(key):
            continue
        why = meaning(key, one.value)
        if why is None:
            num_unknown += 1
            near = did_you_mean(key, PLAIN_NAMES) if num_unknown <= _MOST_HINTS else ""
            hint = near.removeprefix("; ") or "left out of the preset"
            yield finding("no_setting_of_verl", one.line, key=key, hint=hint)
        elif why[1]:
            yield finding("no_equivalent", one.line, key=key, value=one.value, reason=why[0])
        else:
            idle.setdefault(why[0], []).append(key)
    for reason, keys in idle.items():
        yield finding(
            "does_nothing" if len(keys) == 1 else "do_nothing",
            given[keys[0]].line,
            keys=", ".join(keys),
            reason=reason,
        )
