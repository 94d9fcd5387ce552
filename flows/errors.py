"""How a command of `countdown-train` ends when it does not end well (exit codes: flows/cli.py)."""

from __future__ import annotations


class BadInputError(ValueError):
    """What the user gave cannot work: exit code 2."""


class RunFailedError(RuntimeError):
    """The run ended badly: exit code 1."""
