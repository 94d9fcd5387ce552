"""Completion in a shell: commands, presets, keys of settings and their values, runs, questions.

The shell runs this program at each TAB (argcomplete), so neither Hydra nor DuckDB is loaded.
"""

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import argcomplete
from argcomplete.shell_integration import shellcode

from flows.cli.commands import COMMANDS, PROGRAM, QUESTION, RUN, build_parser
from flows.settings.keys import CHOICES, all_keys
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.envs import ENVS
from tasks.queries.saved_questions import list_queries


def print_script(words: Sequence[str], shell: str) -> None:
    """Prints what the shell must evaluate once."""
    sys.stdout.write(shellcode([PROGRAM], shell=shell))


def answer_shell() -> None:
    """Answers a shell that asks how a word may go on, and ends the process."""
    parser = build_parser(lambda command: partial(suggestions, command))
    argcomplete.autocomplete(parser, always_complete_options=False)


def suggestions(command: str, prefix: str, **others: object) -> Iterable[str]:
    """Returns words that may be meant by `prefix`; argcomplete drops those that begin otherwise."""
    key, equals, _ = prefix.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(key)]
    own: list[str] = []
    for word in COMMANDS[command].own:
        if word == RUN:
            own += _runs()
        elif word == QUESTION:
            own += [query.name for query in list_queries()]
        else:
            own.append(word)
    equals = "" if command == "explain" else "="
    return [*own, "preset=", "env=", *(f"{key}{equals}" for key in all_keys())]


def _values(key: str) -> Iterable[str]:
    """Returns the values that a key may have, if they can be listed."""
    fixed = {**CHOICES, "split": ("train", "test"), "dry_run": ("true", "false")}
    if key == "env":
        return list(ENVS)
    if key in fixed:
        return fixed[key]
    if key in ("run_id", "checkpoint", "against"):
        return _runs()
    section, _, name = key.rpartition(".")
    field = RunConfig.model_fields.get(section)
    models: list[Any] = [field.annotation] if field else []
    if section == "env":
        models = [*ENVS.values()]
    schemas = [model.model_json_schema()["properties"].get(name, {}) for model in models]
    return dict.fromkeys(value for schema in schemas for value in _choices(schema))


def _choices(schema: dict[str, Any]) -> list[str]:
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if "anyOf" in schema:
        return [value for part in schema["anyOf"] for value in _choices(part)]
    return [str(value) for value in schema.get("enum", ())]


def _runs() -> list[str]:
    """Returns the runs below the default root; another root is not searched."""
    return sorted(path.name for path in (StorageConfig().root / "runs").glob("*/") if path.is_dir())
