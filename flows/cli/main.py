"""The command line: `countdown-train COMMAND [KEY=VALUE]...`.

Exit codes: 0 fine, 1 the run failed or was stopped, 2 bad input or settings. What went wrong is one
or two lines on stderr; tracebacks are in the run's log.txt.
"""

import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from pkgutil import resolve_name
from typing import Any, Final, NoReturn

from flows.cli import leave, reply
from flows.cli.commands import BAD_INPUT, COMMANDS, JSON, PROGRAM, Misuse, build_parser, parse
from flows.cli.terminal import WarningHandler
from flows.errors import BadInputError, RunFailedError, one_line
from flows.prefect_patches.own_settings import ignore_working_folder
from rl_core.system.log_file import OUR_LOGGERS, listening
from rl_core.system.process_env import apply_defaults, importing
from rl_core.system.redaction import redact
from rl_core.system.words import in_one_line, printable, without_middle
from tasks.preflight_checks import PreflightError

FAILED: Final = 1
_LONGEST_LINE: Final = 2_000  # characters of a message: a value in it may be of any length

_DEFAULTS: Final = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # The terminal shows our own lines (flows/cli/terminal.py); Prefect's go to log.txt and the UI.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_PLUGINS_ENABLED": "true",  # the login of our own server, in every folder
    "PYTHONSAFEPATH": "1",  # modules in the working folder are not imported
}


def main() -> NoReturn:
    """Runs the command line and exits; the entry point `countdown-train`."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # only for a shell that asks how a word may continue

        argcomplete.autocomplete(build_parser(), always_complete_options=False)
    apply_defaults()
    ignore_working_folder()
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    # Only `run` needs that folder, and preflight reports it in one line.
    warnings.filterwarnings("ignore", message="Failed to create the Prefect home directory")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an ASCII terminal shows `?` instead of an error
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:  # started under another name
        signal.signal(signal.SIGTERM, leave)
    code = run_command(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; says on stderr what went wrong."""
    if JSON in arguments:
        return _run_for_a_program(arguments)
    code, message = _outcome(arguments)
    if code:
        _say(message)
    return code


def _run_for_a_program(arguments: Sequence[str]) -> int:
    """The same, and standard output holds one JSON object, also if the command fails."""
    message = ""
    with reply.only_json():
        try:
            code, reason = _outcome(arguments)
            if code:
                message = _say(reason)
        except Misuse as misuse:
            code = BAD_INPUT
            message = misuse.message
    command = next((word for word in arguments if word in COMMANDS), None)
    model = COMMANDS[command].answer if command else ""
    try:
        sys.stdout.write(reply.reply(command, model, code, message))
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    return code


def _outcome(arguments: Sequence[str]) -> tuple[int, str]:
    """Runs one command and returns its exit code, and what went wrong."""
    options = parse(arguments)
    options.pop("json", None)
    try:
        command = COMMANDS[options.pop("command")]
        with importing():
            if command.starts_anew:
                resolve_name("flows.settings.compose:compose")(options["words"])
            function = resolve_name(f"flows.cli.{command.function}")
        _heed_signals()
        with listening(WarningHandler(logging.WARNING), OUR_LOGGERS):
            function(options.pop("words"), **options)
        sys.stdout.flush()
    except (BadInputError, PreflightError) as error:
        return BAD_INPUT, str(error)
    except KeyboardInterrupt as error:
        return FAILED, f"interrupted: {error}".removesuffix(": ")
    except RunFailedError as error:
        return FAILED, str(error)
    except BrokenPipeError:
        _drop_output()  # the reader is gone
    except Exception as error:  # noqa: BLE001  # a person reads one line of any error
        if "KeyboardInterrupt" in str(error):  # within pydantic's own code, which wraps it
            return FAILED, "interrupted"
        if type(error) is ValueError:
            return BAD_INPUT, in_one_line(error)
        return FAILED, one_line(error)
    return 0, ""


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(message: str) -> str:
    """Writes one line, or two if the message has more, and returns what it has written."""
    lines = redact(message).splitlines()
    texts = (printable(without_middle(line.strip(), _LONGEST_LINE)) for line in lines)
    text = "\n".join(list(filter(None, texts))[:2]) or "failed"
    sys.stderr.write(f"{PROGRAM}: {text}\n")
    return text


def _heed_signals() -> None:
    """From here on a signal raises KeyboardInterrupt, at which a command saves and cleans up."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _raise_interrupt}
    for number, handler in handlers.items():
        if signal.getsignal(number) is leave:
            signal.signal(number, handler)


def _raise_interrupt(signum: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt(signal.Signals(signum).name)
