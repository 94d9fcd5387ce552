"""The table of commands, their parser, and the completion of their words in a shell.

A command's module is imported only when it is called. The shell runs this program at each TAB
(argcomplete): neither Hydra nor DuckDB is loaded for it.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, NoReturn

from flows.cli.elsewhere import ELSEWHERE, GROUPS
from flows.errors import BadInputError
from rl_core.runs.ways_on import as_text
from rl_core.system.words import did_you_mean

BAD_INPUT: Final = 2
PROGRAM: Final = "countdown-train"
JSON: Final = "--json"

_BLANKS: Final = re.compile(r"([A-Za-z_][\w.]*)\s*=\s*(.*)", re.DOTALL)
_KEY: Final = re.compile(r"[A-Za-z_][\w.]*")


@dataclass(frozen=True)
class Command:
    """A command; it is called with its words, and with its options by name."""

    function: str  # `module:function` of this package
    help: str
    about: str = "{help}"  # stands above the options in the command's own help
    words: str = "KEY=VALUE"  # their name in the help; empty if there are none
    arguments: tuple[str, ...] = ()  # keys that it takes besides settings
    starts_anew: bool = False
    """Its words are the settings of a run, so a typo is answered before anything heavy loads."""
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By flag, as argparse takes them."""
    answer: str = ""
    """Of a command with `--json`: the model in answers.py of the facts that it gives."""


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text} must be a whole number from 1 to 1,000,000")
    return int(text)


_RUN: Final = "RUN | KEY=VALUE"
_FORMAT: Final[dict[str, Any]] = {
    "dest": "output_format",
    "choices": ("table", "csv", "json", "parquet"),
    "default": "table",
}

COMMANDS: Final[Mapping[str, Command]] = {
    "run": Command(
        "stages:run",
        "the whole pipeline, from an empty folder to a report",
        starts_anew=True,
        about=f"{{help}}.\n\n{as_text()}",
    ),
    "generate": Command("stages:generate", "make the data set", starts_anew=True),
    "validate": Command(
        "stages:validate",
        "check the data set, and prompt lengths against the limit",
        starts_anew=True,
        answer="Validate",
    ),
    "train": Command("stages:train", "train only: no Prefect, no evaluation", starts_anew=True),
    "prune": Command(
        "stages:prune",
        "delete checkpoints and rollouts that a RUN no longer needs; dry_run=true only lists them",
        words=_RUN,
        arguments=("dry_run",),
    ),
    "evaluate": Command(
        "stages:evaluate",
        "evaluate base and trained model of a RUN, by default the latest, or checkpoint=A "
        "against=B",
        words=_RUN,
        arguments=("checkpoint", "against"),
        answer="Evaluate",
    ),
    "report": Command(
        "one_run:report", "write report.html of a RUN, by default the latest", words=_RUN
    ),
    "audit": Command(
        "one_run:audit",
        "check that a RUN's files agree with each other and its settings; 0 only if all holds",
        about="{help}. It reads files only. Each line says what was compared, or what is wrong. "
        "`unknown` cannot be checked. A reward of yours is called again only if you name it with "
        "env.reward=.",
        words="RUN | env.reward=MODULE:FUNCTION",
        answer="Audit",
    ),
    "rescore": Command(
        "stages:rescore",
        "score RUN's rollouts (or `latest`) by a changed reward: env.answer_from=last_line",
        words=_RUN,
    ),
    "sync": Command(
        "stages:sync", "upload missing steps of a RUN to wandb, by default the latest", words=_RUN
    ),
    "runs": Command(
        "sql:list_runs",
        "list the runs, or one RUN, or status=failed --last 20",
        about="list the runs, the newest first, or one RUN. Filters: status=failed,interrupted, "
        "preset=NAME, env=NAME, since=7d (12h, 2026-11-28), note=TEXT, and any setting, as "
        "actor.lr=1e-6.",
        words=_RUN,
        arguments=("status", "since", "note"),
        options={
            "--last": {"type": _count, "metavar": "N", "help": "only the newest N"},
        },
        answer="Runs",
    ),
    "compare": Command(
        "sql:compare",
        "compare RUN RUN...: results, and settings that differ",
        words="RUN RUN ... | KEY=VALUE",
        answer="Compare",
    ),
    "export": Command(
        "models:export",
        "write a CHECKPOINT for others: export RUN/best to=FOLDER dtype=bfloat16",
        about="{help}. Merged weights as safetensors in dtype= (by default bfloat16), tokenizer, "
        "and a card with settings and accuracy. adapter=true writes a LoRA run's adapter for PEFT.",
        words="CHECKPOINT | KEY=VALUE",
        arguments=("to", "dtype", "adapter"),
    ),
    "watch": Command("watch:watch", "follow a RUN live, by default the latest", words=_RUN),
    "stop": Command(
        "one_run:stop", "stop a RUN as Ctrl-C does, by default the latest: it saves", words=_RUN
    ),
    "logs": Command(
        "one_run:logs",
        "print the log of a RUN and of its processes, by default the latest",
        words=_RUN,
        options={"-f": {"dest": "follows", "action": "store_true", "help": "and what follows"}},
    ),
    "note": Command(
        "one_run:note",
        'keep a note on a RUN: note RUN "lr was too high"; runs, report and compare show it',
        words='RUN "TEXT" | storage.root=FOLDER',
    ),
    "open": Command(
        "one_run:open_in_browser",
        "open the report of a RUN, by default the latest, or the ui of Prefect, in your browser",
        words="RUN | ui",
    ),
    "serve": Command(
        "serve:serve",
        "Prefect's server, the deployments and a worker, until Ctrl-C; serve status says how it is",
        words="status",
    ),
    "notify": Command(
        "notifying:notify",
        "test: send a message to the webhook and the command in deployments/night.yaml",
        words="test",
    ),
    "preflight": Command(
        "stages:preflight",
        "say what would stop a run, and what it will need",
        starts_anew=True,
        answer="Preflight",
    ),
    "reward": Command(
        "reward:reward",
        "probe: score right answers and texts that deserve nothing, before a night",
        about="{help}. MODULE:FUNCTION is a reward of yours, or env=NAME has its own; "
        "data.train_files=FILE has the problems. response='TEXT' is scored too. Exit code 2 if "
        "right answers are not correct.",
        words="probe [MODULE:FUNCTION] | KEY=VALUE",
        arguments=("response",),
    ),
    "import": Command(
        "imports:import_file",
        "turn a verl or TinyZero launch script into a preset, or a console log into a run",
        about="{help}. output=FILE names the preset, run_id=NAME the run; NAME=VALUE is a "
        "variable that the script takes from outside (BASE_MODEL=Qwen/Qwen2.5-3B N_GPUS=1).",
        words="FILE | KEY=VALUE | NAME=VALUE",
    ),
    "sql": Command(
        "sql:sql",
        "query rollouts, metrics, evaluations, checkpoints and runs with SQL",
        about="NAME is a saved question (--list), or a SELECT of your own in quotes. Works while a "
        "run is writing. The views are rollouts, turns, rescores, metrics, evaluations, "
        "all_evaluations, problem_accuracy, held_out, checkpoints, settings, runs and datasets.",
        words="NAME | SELECT | RUN | KEY=VALUE",
        options={
            "-q": {"dest": "select", "metavar": "SELECT", "help": "one SELECT over the views"},
            "--list": {"dest": "lists", "action": "store_true", "help": "list the saved questions"},
            "--run": {"metavar": "RUN", "help": "one run, or `latest`; by default all runs"},
            "-p": {
                "dest": "parameters",
                "action": "append",
                "default": [],
                "metavar": "K=V",
                "help": "a $parameter",
            },
            "--format": _FORMAT,
        },
    ),
    "data": Command(
        "data:data",
        "look into a data set or any parquet file: head [N], columns, lengths",
        about="head [N] shows the first rows, columns their types, lengths how many "
        "characters and tokens the texts take. FILE is any parquet file, or a folder of them; by "
        "default the data set of a RUN or of the settings. split=test, column=response.",
        words="head [N] | columns | lengths | FILE | RUN | K=V",
        arguments=("split", "column"),
        options={"--format": _FORMAT},
    ),
    "ask": Command(
        "models:ask",
        "ask a CHECKPOINT a question of yours, or problems=N of the test split",
        about="{help}. CHECKPOINT is as `evaluate checkpoint=` takes it (RUN, RUN/best, "
        "RUN/base, champion, latest, a folder, a hub name). A puzzle is '3 14 7 = 35', a word "
        "problem may have answer=18. samples=N asks each N times, by evaluation.temperature, top_p "
        "and top_k.",
        words="CHECKPOINT [QUESTION] | KEY=VALUE",
        arguments=("problems", "samples", "answer"),
    ),
    "play": Command(
        "play:play",
        "be the policy: read a prompt, write a response, see its score; env=NAME chooses",
    ),
    "completion": Command(
        "commands:print_completion",
        f'completion for your shell: eval "$({PROGRAM} completion bash)"',
        words="",
        options={"shell": {"choices": ("bash", "zsh", "fish")}},
    ),
    "explain": Command(
        "explain:explain",
        "say what a setting means, its bounds, which presets set it, its name in verl",
        about="{help}. KEY may be a group (actor), a part of names (lora) or verl's name; with "
        "=VALUE it says whether that is allowed with the settings that follow.",
        words="KEY[=VALUE]",
        answer="Explain",
    ),
    "config": Command("explain:print_config", "print the resolved settings"),
}


class Misuse(SystemExit):
    """Words that no command takes: exit code 2, after `message` is on standard error."""

    def __init__(self, message: str) -> None:
        super().__init__(BAD_INPUT)
        self.message = message


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        raise Misuse(message)


class _Root(_Parser):
    """The program itself: its help lists the commands by group."""

    def format_help(self) -> str:
        lines = [f"usage: {PROGRAM} COMMAND [KEY=VALUE]...", "", str(self.description), ""]
        for title, names in GROUPS.items():
            lines += [f"{title}:", *(f"    {name:12}{COMMANDS[name].help}" for name in names), ""]
        more = f"{PROGRAM} COMMAND --help says more of one; --version prints the version."
        return "\n".join([*lines, str(self.epilog), more, ""])


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands; argcomplete reads the completer of their words there."""
    parser = _Root(
        prog=PROGRAM,
        description="Reinforcement learning on verifiable tasks, from puzzles to a report.",
        epilog="Settings are KEY=VALUE: preset=tinyzero-3b actor.lr=1e-6; `config` prints all, "
        "`explain KEY` says what one means.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {version(PROGRAM)}")
    parsers = parser.add_subparsers(
        metavar="COMMAND", dest="command", required=True, parser_class=_Parser
    )
    for name, command in COMMANDS.items():
        about = command.about.format(help=command.help)
        shape = argparse.RawDescriptionHelpFormatter if "\n" in about else argparse.HelpFormatter
        subparser = parsers.add_parser(
            name, help=command.help, description=about, formatter_class=shape
        )
        subparser.set_defaults(words=[])
        if command.words:
            words: Any = subparser.add_argument("words", nargs="*", metavar=command.words)
            words.completer = partial(suggestions, name)
        for flag, settings in command.options.items():
            subparser.add_argument(flag, **settings)
        if command.answer:
            subparser.add_argument(
                JSON, action="store_true", help="one JSON object on standard output, docs/json.md"
            )
    return parser


def print_completion(words: Sequence[str], shell: str) -> None:
    """Prints what the shell must evaluate once."""
    from argcomplete.shell_integration import shellcode

    sys.stdout.write(shellcode([PROGRAM], shell=shell))


def suggestions(command: str, prefix: str, **others: object) -> list[str]:
    """Returns words that may be meant by `prefix`; argcomplete drops those that begin otherwise."""
    from flows.settings.keys import CHOICES, all_keys

    key, equals, _ = prefix.partition("=")
    if equals:
        return [f"{key}={name}" for name in CHOICES.get(key, ())]
    end = "" if command == "explain" else "="
    runs = [folder.name for folder in Path("outputs/runs").glob("[!.]*") if folder.is_dir()]
    words = COMMANDS[command].words
    if command == "sql":
        from tasks.queries.saved_questions import list_queries

        runs += [query.name for query in list_queries()]
    if "CHECKPOINT" in words:
        runs += [f"{run}/{which}" for run in runs for which in ("best", "latest", "base")]
    return [
        *(runs if "RUN" in words or "CHECKPOINT" in words else ()),
        *(f"{key}=" for key in (*COMMANDS[command].arguments, *CHOICES)),
        *(f"{key}{end}" for key in all_keys()),
    ]


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns `command`, `words` (before and after options, too) and the command's options."""
    parser = build_parser()
    first, *rest = arguments or ["help"]
    if first == "help":
        first, *rest = [rest[0], "--help"] if rest else ["--help"]
    if first.startswith("-") and first not in ("-h", "--help", "--version"):
        parser.error(f"unknown option {first}{did_you_mean(first, ['--help', '--version'])}")
    if first not in COMMANDS and not first.startswith("-"):
        ours = ELSEWHERE.get(first)
        hint = f": {PROGRAM} {ours}" if ours else did_you_mean(first, COMMANDS)
        parser.error(f"unknown command {first!r}{hint}")
    options, more = parser.parse_known_args([first, *rest])
    if unknown := next((word for word in more if word.startswith("-")), None):
        hint = did_you_mean(unknown, [*COMMANDS[first].options, "--help"])
        parser.error(f"unknown option {unknown}{hint}")
    if more and not COMMANDS[first].words:
        parser.error(f"{first} does not take {more[0]!r}")
    options.words = _without_blanks([*options.words, *more], asks=first in ("ask", "note"))
    return vars(options)


def take_arguments(command: str, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Returns the command's own arguments by name, and the other words, for `compose` to check."""
    from flows.settings.keys import CHOICES, check_key  # only for a command that is called

    names = COMMANDS[command].arguments
    taken: dict[str, str] = {}
    others = []
    for text in words:
        name, equals, value = text.partition("=")
        if name not in names:
            if equals and "." not in name and name not in CHOICES:
                check_key(name, names)
            others.append(text)
        elif name in taken:
            raise BadInputError(f"{name} is given twice: {text!r} too")
        elif not value.strip():
            raise BadInputError(f"{text!r} is not KEY=VALUE")
        else:
            taken[name] = value.strip()
    return taken, others


def _without_blanks(words: Sequence[str], *, asks: bool) -> list[str]:
    """Returns `KEY = VALUE` as `KEY=VALUE`; if `asks`, a word may be a question with a sum."""
    joined: list[str] = []
    for word in words:
        before = joined[-1] if joined else ""
        opens = before.endswith("=") and _KEY.fullmatch(before[:-1]) and "=" not in word
        if opens or (word.startswith("=") and _KEY.fullmatch(before)):
            joined[-1] += word
        else:
            joined.append(word)
    return [
        f"{setting[1]}={setting[2]}"
        if (setting := _BLANKS.fullmatch(word)) and not (asks and "." not in setting[1])
        else word
        for word in joined
    ]
