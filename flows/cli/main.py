"""The command line: `countdown-train COMMAND [KEY=VALUE]...`.

Exit codes: 0 fine, 1 the run failed or was stopped, 2 bad input or settings. What went wrong is one
or two lines on stderr; tracebacks are in the run's log.txt. Each command imports what it needs, so
that `--help`, `config` and `sql` answer at once.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Final, NoReturn

from flows.cli import ask as cli_ask
from flows.cli import completion, stages
from flows.cli import data as cli_data
from flows.cli import explain as cli_explain
from flows.cli import imports as cli_import
from flows.cli import sql as cli_sql
from flows.errors import BadInputError, RunFailedError, SettingsError, one_line
from rl_core.system.process_env import apply_defaults

FINE: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2

_PREFECT_DEFAULTS: Final = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
    # The terminal shows our own lines (flows/cli/terminal.py); Prefect's go to log.txt and the UI.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
}


def main() -> NoReturn:
    """Runs the command line and exits; the entry point `countdown-train`."""
    completion.answer_shell(_parser)
    apply_defaults()
    for name, value in _PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)
    signal.signal(signal.SIGTERM, _raise_interrupt)
    code = run_command(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code; says on stderr what went wrong."""
    options = _parse(arguments)
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
        sys.stdout.flush()
    except (SettingsError, BadInputError) as error:
        return _say(str(error), BAD_INPUT)
    except KeyboardInterrupt as error:
        return _say(f"interrupted: {error}" if str(error) else "interrupted", FAILED)
    except RunFailedError as error:
        return _say(str(error), FAILED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads on
    except Exception as error:  # noqa: BLE001  # whatever it is, a person reads one line
        return _say(one_line(error), FAILED)
    return FINE


def _say(message: str, code: int) -> int:
    """Writes one line, or two where the message has more, and returns the code."""
    lines = [line.strip() for line in message.strip().splitlines() if line.strip()]
    sys.stderr.write(
        "\n".join(("countdown-train: " + (lines or ["failed"])[0], *lines[1:2])) + "\n"
    )
    return code


def _raise_interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


_STAGES: Final = {
    "run": "the whole pipeline, from an empty folder to a report",
    "generate": "make the data set",
    "validate": "check the data set, and prompt lengths against the limit",
    "train": "train, without Prefect around it",
    "prune": "delete what need not stay of run_id=RUN (by default the latest), or dry_run=true",
    "evaluate": "evaluate base and trained model of a run, or checkpoint=A against=B",
    "report": "write a run's report.html",
    "rescore": "score RUN's rollouts (or `latest`) by a changed reward: env.answer_from=last_line",
    "sync": "upload to wandb what it lacks of run_id=RUN (by default the latest), or of all",
    "runs": "list the runs",
    "compare": "set RUN RUN... beside one another, curves in output=FILE.html",
    "watch": "show a RUN as it goes, by default the latest",
    "serve": "Prefect's server, the deployments and a worker, until Ctrl-C",
}
_PREFLIGHT: Final = "say what would stop a run, and what it will need"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="countdown-train",
        description="Reinforcement learning on verifiable tasks, from puzzles to a report.",
        epilog="Settings are KEY=VALUE: preset=tinyzero-3b actor.lr=1e-6; `config` prints all, "
        "`explain KEY` says what one means.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, help_text in _STAGES.items():
        stage = commands.add_parser(name, help=help_text, description=help_text)
        stage.add_argument("words", nargs="*", metavar="KEY=VALUE")
        stage.set_defaults(command=_with_overrides(stages.COMMANDS[name]))
    look = commands.add_parser("preflight", help=_PREFLIGHT, description=_PREFLIGHT)
    look.add_argument("words", nargs="*", metavar="KEY=VALUE")
    look.add_argument("--json", action="store_true", help="for programs")
    look.set_defaults(command=lambda o: stages.preflight(o.words, as_json=o.json))
    cli_import.add_parser(commands)
    cli_sql.add_parser(commands)
    cli_data.add_parser(commands)
    cli_ask.add_parser(commands)
    completion.add_parser(commands)
    cli_explain.add_parsers(commands)
    return parser


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Returns the options; words may stand before and after them, which argparse alone refuses."""
    parser = _parser()
    options, more = parser.parse_known_args(arguments)
    unknown = [word for word in more if word.startswith("-")]
    if unknown:
        parser.error(f"unknown option {unknown[0]}")
    options.words += more
    return options


def _with_overrides(
    stage: Callable[[Sequence[str]], None],
) -> Callable[[argparse.Namespace], None]:
    return lambda options: stage(options.words)
