"""Completion in a shell: commands, presets, envs, and the keys of settings.

The shell runs this program at each TAB (argcomplete), so neither Hydra nor DuckDB is loaded.
"""

import sys
from collections.abc import Sequence
from functools import partial

import argcomplete
from argcomplete.shell_integration import shellcode

from flows.cli.commands import COMMANDS, PROGRAM, build_parser
from flows.settings.keys import CHOICES, all_keys


def print_script(words: Sequence[str], shell: str) -> None:
    """Prints what the shell must evaluate once."""
    sys.stdout.write(shellcode([PROGRAM], shell=shell))


def answer_shell() -> None:
    """Answers a shell that asks how a word may go on, and ends the process."""
    parser = build_parser(lambda command: partial(suggestions, command))
    argcomplete.autocomplete(parser, always_complete_options=False)


def suggestions(command: str, prefix: str, **others: object) -> list[str]:
    """Returns words that may be meant by `prefix`; argcomplete drops those that begin otherwise."""
    key, equals, _ = prefix.partition("=")
    if equals:
        return [f"{key}={name}" for name in CHOICES.get(key, ())]
    end = "" if command == "explain" else "="
    return [
        *(f"{key}=" for key in (*COMMANDS[command].arguments, *CHOICES)),
        *(f"{key}{end}" for key in all_keys()),
    ]
