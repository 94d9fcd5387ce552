"""Completion in a shell: commands, presets, keys of settings and their values, runs, questions.

The shell runs this program at each TAB (argcomplete): what it loads must answer at once, so neither
Hydra nor DuckDB is among it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

_PROGRAM: Final = "countdown-train"
_SHELLS: Final = ("bash", "zsh", "fish")
_HELP: Final = f'completion for your shell: eval "$({_PROGRAM} completion bash)"'
_LOOKS: Final = ("head", "columns", "lengths")
_OWN_WORDS: Final = {
    "ask": ("problems=", "samples=", "answer="),
    "compare": ("output=",),
    "data": ("split=", "column="),
    "evaluate": ("checkpoint=", "against="),
    "import": ("output=",),
    "prune": ("dry_run=",),
}
"""Arguments of commands beside settings."""
_OF_RUNS: Final = ("ask", "compare", "rescore", "watch")
"""Commands that take a RUN as a word of its own."""


def add_parser(commands: Any) -> None:
    """Adds `completion` to the command line's commands."""
    parser = commands.add_parser("completion", help=_HELP, description=_HELP)
    parser.add_argument("shell", choices=_SHELLS)
    parser.set_defaults(command=print_script, words=[])


def print_script(options: argparse.Namespace) -> None:
    """Prints what the shell must evaluate once."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode([_PROGRAM], shell=options.shell))


def answer_shell(parser: Callable[[], argparse.ArgumentParser]) -> None:
    """Answers a shell that asks how a word may go on, and ends the process; else does nothing."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    import argcomplete

    asked = parser()
    (commands,) = (a for a in asked._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        for action in command._actions:
            if action.dest == "words":
                action.completer = _completer(name)  # argcomplete's, not argparse's
    argcomplete.autocomplete(asked, always_complete_options=False)


def suggestions(command: str, prefix: str) -> Iterable[str]:
    """Returns the words that may stand where `prefix` is being written."""
    key, equals, _ = prefix.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(key)]
    words = [*_OWN_WORDS.get(command, ()), "preset=", "env="]
    if command == "data":
        words += _LOOKS
    if command in _OF_RUNS:
        words += _runs()
    if command == "sql":
        from tasks.queries.saved_questions import list_queries

        words += [query.name for query in list_queries()]
    from flows.settings.keys import known_keys
    from rl_core.envs import ENVS

    keys = dict.fromkeys(key for env in ENVS for key in known_keys(env))
    return [*words, *(key if command == "explain" else f"{key}=" for key in keys)]


def _completer(command: str) -> Callable[..., Iterable[str]]:
    return lambda prefix, **_: [w for w in suggestions(command, prefix) if w.startswith(prefix)]


def _values(key: str) -> Iterable[str]:
    """Returns the values that a key may have, where they can be counted."""
    from flows.settings.keys import CHOICES
    from rl_core.config.run import RunConfig
    from rl_core.envs import ENVS

    if key in CHOICES:
        return CHOICES[key]
    if key in ("run_id", "checkpoint", "against"):
        return _runs()
    if key == "split":
        return ("train", "test")
    section, _, name = key.rpartition(".")
    field = RunConfig.model_fields.get(section)
    if section == "env":
        models: list[Any] = [env.settings for env in ENVS.values()]
    else:
        models = [field.annotation] if field else []
    schemas = [model.model_json_schema()["properties"].get(name, {}) for model in models]
    values = [value for schema in schemas for value in _choices(schema)]
    return dict.fromkeys(["true", "false"] if key == "dry_run" else values)


def _choices(schema: dict[str, Any]) -> list[str]:
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if "anyOf" in schema:
        return [value for part in schema["anyOf"] for value in _choices(part)]
    return [str(value) for value in schema.get("enum", ())]


def _runs() -> list[str]:
    """Returns the runs in the folder where they are by default; another root is not looked into."""
    from rl_core.config.operations import StorageConfig

    runs = StorageConfig().root / "runs"
    return sorted(path.name for path in Path(runs).glob("*/") if path.is_dir())
