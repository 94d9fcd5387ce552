"""How a command of `countdown-train` ends when it does not end well (exit codes: flows/cli.py)."""

from __future__ import annotations


class BadInputError(ValueError):
    """What the user gave cannot work: exit code 2."""


class RunFailedError(RuntimeError):
    """The run ended badly: exit code 1."""


_LONGEST = 400


def one_line(error: BaseException) -> str:
    """Returns an error's type and message in one line, cut where it is very long.

    An error that Ray brings from another process has that process's traceback as its message; its
    `cause` is the error itself.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        error = cause
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
