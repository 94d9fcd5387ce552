"""The command `countdown-train ask CHECKPOINT [QUESTION]`: a model's answers and their verdicts."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flows.errors import BadInputError
from flows.runs.lookup import settings_of_run, take_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rl_core.config.run import RunConfig
    from rl_core.envs.record import Question
    from tasks.ask import Reply
    from tasks.queries.checkpoint_names import NamedModel

_HELP: Final = "ask a CHECKPOINT a question of yours, or problems=N of the test split"
_ARGUMENTS: Final = ("problems", "samples", "answer")
_SETTING: Final = re.compile(r"[a-z][\w.]*=.*", re.DOTALL)
_PROBLEMS: Final = "3"
_MOST: Final = 1_000


def add_parser(commands: Any) -> None:
    """Adds `ask` to the command line's commands."""
    parser = commands.add_parser(
        "ask",
        help=_HELP,
        description=f"{_HELP}. CHECKPOINT is as `evaluate checkpoint=` takes it (RUN, RUN/best, "
        "RUN/base, champion, latest, a folder, a hub name). A puzzle is '3 14 7 = 35', a word "
        "problem may have answer=18. samples=N asks each N times, by evaluation.temperature.",
    )
    parser.add_argument("words", nargs="*", metavar="CHECKPOINT [QUESTION] | KEY=VALUE")
    parser.set_defaults(command=ask)


def ask(options: argparse.Namespace) -> None:
    """Prints the responses, and how many are right.

    Raises:
        BadInputError: no such checkpoint, or no question.
    """
    named = [word for word in options.words if not _SETTING.fullmatch(word)]
    given, settings = take_arguments([w for w in options.words if w not in named], _ARGUMENTS)
    if len(named) not in (1, 2):
        raise BadInputError("ask takes a CHECKPOINT and one QUESTION in quotes, or problems=N")
    if len(named) > 1 and "problems" in given:
        raise BadInputError("either a QUESTION or problems=N")
    count = _number("problems", given.get("problems", _PROBLEMS))
    samples = _number("samples", given["samples"]) if "samples" in given else None
    from tasks.ask import ask_model

    try:
        model, config = _model_and_settings(named[0], settings)
        questions = _questions(config, model, named[1:], given.get("answer"), count)
    except (OSError, ValueError) as error:
        raise BadInputError(" ".join(str(error).split())) from error
    from rl_core.checkpoints.store import reading_sound

    how = "greedy" if samples is None else f"{samples} samples of each question"
    _print(f"{model.name}, {how}, at most {config.data.max_response_length} tokens")
    with reading_sound(model.folder):
        replies = list(ask_model(config, model.folder, questions, samples=samples))
    for number, reply in enumerate(replies, start=1):
        _show(number, reply)
    scored = [reply.scored for reply in replies if reply.scored is not None]
    if scored:
        right = sum(one.verdict == "correct" for one in scored)
        _print(f"\n{right} of {len(scored)} correct")


def _number(name: str, text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise BadInputError(f"{name}={text} must be a whole number from 1 to {_MOST}")
    return int(text)


def _model_and_settings(name: str, settings: Sequence[str]) -> tuple[NamedModel, RunConfig]:
    """Returns the model, and how it is asked: as by its run, any other as the settings say."""
    from flows.settings.compose import compose
    from tasks.queries.checkpoint_names import find_model

    here = ("run_id=", "storage.root=")
    where = compose([text for text in settings if text.startswith(here)])
    root = where.storage.root
    model = find_model(name, root, run_id=where.run_id or "latest")
    if model.run is None:
        return model, compose(settings, arguments=_ARGUMENTS)
    base = settings_of_run(model.run, root)
    changes = [text for text in settings if not text.startswith(here)]
    return model, compose(changes, base=base, arguments=_ARGUMENTS)


def _questions(
    config: RunConfig, model: NamedModel, texts: Sequence[str], answer: str | None, count: int
) -> list[Question]:
    from rl_core.data.dataset import dataset_folder, read_problems
    from tasks.ask import question_of, read_question

    if texts:
        return [read_question(config, texts[0], answer)]
    data = None if model.run is None else model.run.read().data
    folder = dataset_folder(config) if data is None else Path(data)
    if not (folder / "test.parquet").is_file():
        raise BadInputError(
            f"{folder} holds no test split to take problems from: countdown-train generate with "
            "these settings makes it, or ask a QUESTION"
        )
    return [
        question_of(config, problem) for problem in read_problems(folder / "test.parquet")[:count]
    ]


def _show(number: int, reply: Reply) -> None:
    from rl_core.system.printable import printable

    _print(f"\n-- {number} --  {printable(reply.question.shown)}")
    for line in reply.response.splitlines():
        _print(f"  {printable(line)}")
    cut = ", cut there" if reply.is_cut else ""
    if reply.scored is None:
        _print(
            f"({reply.num_tokens} tokens{cut}; not scored: answer=NUMBER would say what is right)"
        )
        return
    answer, value = reply.scored.answer, reply.scored.value
    said = "" if answer is None else f": {printable(answer)}"
    equals = f" = {value}" if value is not None and value != answer else ""
    _print(f"{reply.scored.verdict}{said}{equals} ({reply.num_tokens} tokens{cut})")


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
