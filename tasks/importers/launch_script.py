"""Turns a verl or TinyZero launch script into a preset of ours, and says what is wrong with it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from rl_core.system.process_env import is_secret_name
from rl_core.system.redaction import is_secret
from rl_core.system.words import did_you_mean, printable
from tasks.importers.shell_script import Command, Script, Word
from tasks.importers.verl_rules import translate
from tasks.importers.verl_table import NAMES, PLAIN_NAMES, Given, Settings, finding, meaning
from tasks.preflight_checks import Finding

_SETTING = re.compile(r"^\+{0,2}(?P<key>[A-Za-z_]\w*(?:\.[\w-]+)+)=(?P<value>.*)$", re.DOTALL)
_INTERPOLATED = re.compile(r"\$\{([\w.]+)\}")
_BROKEN = re.compile(r"^(?!\s*#).*\\[ \t]+$")
_NO_ASSIGNMENT = re.compile(r"^\s*\$(\w+)=\S")
_CONFIG_NAME = re.compile(r"^(?:--config-name|-cn)=?(?!ppo_\w*trainer)(.*)$")
_OTHERS: Final = {"TRL": r"--num_generations|--max_completion_length", "OpenRLHF": r"openrlhf"}
_OF_ANY_SHELL: Final = ("HOME", "PWD", "USER")


@dataclass(frozen=True)
class Imported:
    """A script as settings of ours (dotted keys), and what is wrong with it."""

    settings: Settings
    findings: list[Finding]

    def preset(self, source: str) -> str:
        """Returns the settings as the text of a preset file."""
        env = {"override /env": self.settings["env.name"]}
        preset: dict[str, Any] = {"defaults": [env]}
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
    script = Script(text, {**shell, **variables})
    command, words = _training_command(text, script)
    given, doubles = _settings(words)
    settings, of_settings = translate(given, command.words[0].line)
    findings = [
        *_line_findings(text, script, words),
        *_command_findings(text, script, command),
        *doubles,
        *_variable_findings(script, given, variables),
        *_inherited(script, given, {k: shell[k] for k in shell.keys() - variables.keys()}),
        *of_settings,
        *_key_findings(given),
    ]
    findings.sort(key=lambda one: int(one.check.removeprefix("line ")))
    return Imported(settings, findings)


def _training_command(text: str, script: Script) -> tuple[Command, list[Word]]:
    """Returns the command that trains, and its words with those that were cut off from it."""
    ranks = [_rank(command) for command in script.commands]
    if (best := max(ranks, default=(False, 0))) == (False, 0):
        raise ValueError(_why_no_settings(text, script))
    first, *later = script.commands[ranks.index(best) :]
    cut_off = [command for command in later if _SETTING.match(command.words[0].text)]
    return first, [word for command in (first, *cut_off) for word in command.words]


def _rank(command: Command) -> tuple[bool, int]:
    """Returns whether it starts verl and has settings, else how many settings of verl it has."""
    keys = [match["key"] for word in command.words if (match := _SETTING.match(word.text))]
    if any("main_ppo" in word.text for word in command.words):
        return bool(keys), 0  # the first such command
    # A text that only shows commands has settings, too, but none of verl's, or those of ours.
    is_known = any(key in NAMES or meaning(key, "") is not None for key in keys)
    is_verls = is_known and Path(command.words[0].text).name != "countdown-train"
    return False, len(keys) if is_verls else 0


def _why_no_settings(text: str, script: Script) -> str:
    for whose, pattern in _OTHERS.items():
        if re.search(pattern, text):
            return (
                f"this is a script of {whose}, which is not read: docs/coming-from.md has the "
                "names of settings in verl, TRL and OpenRLHF beside ours"
            )
    for line, said in enumerate(text.split("\n"), start=1):
        if "main_ppo" in said.partition("#")[0]:
            return (
                f"the command in line {line} stands in a text or in back-ticks, which are not "
                "read: copy the command into a file of its own and import that"
            )
    for command in script.commands:
        files = [word.text for word in command.words if word.text.endswith(".sh")]
        if files:
            known = {k: v for k, v in script.values.items() if not is_secret(k, v)}
            given = " ".join(f"{key}={value}" for key, value in known.items())
            return (
                f"it starts {files[0]} in line {command.words[0].line}, which is not followed: "
                f"countdown-train import {files[0]} {given}".rstrip()
            )
    return (
        "no settings were found: a launch script has a command with some of verl's, like "
        "data.train_batch_size=256"
    )


def _line_findings(text: str, script: Script, words: list[Word]) -> Iterator[Finding]:
    """Names lines that do something else than they seem to."""
    before = ""
    for i, line in enumerate(text.split("\n"), start=1):
        is_comment = i in script.comments and before.endswith("\\")
        before = line
        if assigned := _NO_ASSIGNMENT.match(line):
            yield finding("assigns_nothing", i, name=assigned[1])
        if not is_comment and not _BROKEN.match(line):
            continue
        lost = [word.text for word in words if word.line > i and _SETTING.match(word.text)]
        loses = f" and loses {len(lost)} settings, from {lost[0]!r} on" if lost else ""
        if lost or not is_comment:
            yield finding("ends_at_a_comment" if is_comment else "ends_at_a_blank", i, loses=loses)


def _command_findings(text: str, script: Script, command: Command) -> Iterator[Finding]:
    """Names what hides values of the command that trains, or its exit code."""
    for word in command.words:
        if (named := _CONFIG_NAME.match(word.text)) and named[1]:
            yield finding("configuration", word.line, name=named[1])
    if (around := command.around) is not None:
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
    named: set[str] = set()
    for name, line in script.unset.items():
        use = re.compile(rf"\$\{{?{re.escape(name)}\b")
        lost = [key for key, one in given.items() if use.search(one.value)]
        named.update(lost)
        if lost:
            say = "unset" if any(key in NAMES for key in lost) else "unset_without_a_meaning"
            say = "secret" if is_secret_name(name) else say
            yield finding(say, line, name=name, keys=", ".join(lost))
    for key, one in given.items():
        if "$" in one.value and key in NAMES and key not in named:
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


def _settings(words: list[Word]) -> tuple[dict[str, Given], list[Finding]]:
    """Returns the settings, of each key the last, and findings on keys that are given twice."""
    given: dict[str, Given] = {}
    findings = []
    for word in words:
        if (match := _SETTING.match(word.text)) is None:
            continue
        key, value = match["key"], match["value"]
        if key in given:
            facts = {"first": given[key].value, "first_line": given[key].line}
            findings.append(finding("given_twice", word.line, key=key, value=value, **facts))
        given[key] = Given(value, word.line)
    # A value may name another setting: ${data.train_batch_size}.
    value_of = lambda match: given[match[1]].value if match[1] in given else match[0]  # noqa: E731
    return {
        key: Given(_INTERPOLATED.sub(value_of, one.value), one.line) for key, one in given.items()
    }, findings


def _key_findings(given: Mapping[str, Given]) -> Iterator[Finding]:
    """Names keys that do nothing, by the reason, and those that are not known of verl."""
    idle: dict[str, list[str]] = {}
    for key, one in given.items():
        if key in NAMES:
            continue
        found = meaning(key, one.value)
        if found is None:
            hint = did_you_mean(key, PLAIN_NAMES).removeprefix("; ") or "left out of the preset"
            yield finding("no_setting_of_verl", one.line, key=key, hint=hint)
        elif found[1]:
            yield finding("no_equivalent", one.line, key=key, value=one.value, reason=found[0])
        else:
            idle.setdefault(found[0], []).append(key)
    for reason, keys in idle.items():
        say = "does_nothing" if len(keys) == 1 else "do_nothing"
        yield finding(say, given[keys[0]].line, keys=", ".join(keys), reason=reason)
