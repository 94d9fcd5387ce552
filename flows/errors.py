"""How a command of `countdown-train` fails; main.py has the exit codes."""

from rl_core.system.atomic import is_disk_full
from rl_core.system.words import cut, in_one_line, printable


class BadInputError(ValueError):
    """Bad input or settings: one line that names key, value and limit or remedy; exit code 2."""


class RunFailedError(RuntimeError):
    """The run ended badly: exit code 1."""


_OURS = ("flows", "tasks", "rl_core")
_LONGEST = 400


def one_line(error: BaseException) -> str:
    """Returns an error's type and message in one line, cut if it is very long.

    The type is left out of our own errors and ValueErrors, which are worded for a person. Ray's
    have a traceback as their message, and the error as their `cause`. For a full disk it
    says the remedy, too.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        error = cause
    kind = type(error)
    is_worded = kind is ValueError or kind.__module__.partition(".")[0] in _OURS
    message = str(error) if is_worded and str(error) else f"{kind.__name__}: {error}"
    if isinstance(error, OSError) and error.filename and not is_disk_full(error):
        message = f"{error.filename}: {error.strerror}"
    remedy = ""
    if is_disk_full(error):
        from tasks.report_page.failures import cause_of  # a table, read if it is needed

        remedy = f": {cause.remedy}" if (cause := cause_of(error)) is not None else ""
    return cut(printable(in_one_line(message)), _LONGEST - len(remedy)) + remedy
