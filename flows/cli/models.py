"""The commands `countdown-train ask CHECKPOINT [QUESTION]` and `export CHECKPOINT to=FOLDER`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flows.cli.commands import take_arguments
from flows.cli.terminal import say
from flows.errors import BadInputError
from flows.runs.lookup import changed_settings, named_model, refuse_unnamed, where_and_others
from flows.settings.compose import compose
from rl_core.checkpoints.store import reading_sound
from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_folder, read_problems
from rl_core.envs.text_env import Question
from rl_core.system.words import as_path, in_one_line, printable
from tasks.ask import Reply, ask_model, question_of, read_question
from tasks.queries.checkpoint_names import NamedModel

_SETTING: Final = re.compile(r"[a-z][\w.]*=.*", re.DOTALL)
_PROBLEMS: Final = "3"
_MOST: Final = 1_000


def ask(words: Sequence[str]) -> None:
    """Prints the responses, and how many are right."""
    named = [word for word in words if not _SETTING.fullmatch(word)]
    given, settings = take_arguments("ask", [w for w in words if w not in named])
    if len(named) not in (1, 2):
        raise BadInputError("ask takes a CHECKPOINT and one QUESTION in quotes, or problems=N")
    if len(named) > 1 and "problems" in given:
        raise BadInputError("either a QUESTION or problems=N")
    count = _number("problems", given.get("problems", _PROBLEMS))
    samples = _number("samples", given["samples"]) if "samples" in given else None
    try:
        model, storage = named_model(named[0], settings)
        if model.run is None:
            config = compose(settings)
        else:
            config = changed_settings(model.run, settings, storage)
            refuse_unnamed(config, settings)
        questions = (
            [read_question(config, named[1], given.get("answer"))]
            if named[1:]
            else _questions(config, model, count)
        )
    except (OSError, ValueError) as error:
        raise BadInputError(in_one_line(error)) from error
    how = "one sample" if config.evaluation.decoding == "sampled" else "greedy"
    how = how if samples is None else f"{samples} samples of each question"
    say(f"{model.name}, {how}, at most {config.data.max_response_length} tokens")
    with reading_sound(model.folder):
        replies = list(ask_model(config, model.folder, questions, samples=samples))
    for number, reply in enumerate(replies, start=1):
        _show(number, reply)
    verdicts = [reply.scored.verdict for reply in replies if reply.scored is not None]
    if verdicts:
        say(f"\n{verdicts.count('correct')} of {len(verdicts)} correct")


def export(words: Sequence[str]) -> None:
    """Writes the folder."""
    from tasks.export import DTYPES, export_adapter, export_model  # with torch

    named = [word for word in words if "=" not in word]
    given, settings = take_arguments("export", [word for word in words if "=" in word])
    if len(named) != 1 or "to" not in given:
        raise BadInputError("export takes a CHECKPOINT (such as best, or RUN/best) and to=FOLDER")
    dtype = given.get("dtype", "bfloat16")
    if dtype not in DTYPES:
        raise BadInputError(f"dtype={dtype} is not {', '.join(DTYPES)}")
    if other := where_and_others(settings)[1]:
        raise BadInputError(f"{other[0]!r}: export takes to, dtype, adapter and storage.root")
    adapter = given.get("adapter", "false")
    if adapter not in ("true", "false"):
        raise BadInputError(f"adapter={adapter} must be true or false")
    if adapter == "true" and "dtype" in given:
        raise BadInputError("an adapter is exported in float32, as it was trained: leave dtype out")
    model, storage = named_model(named[0], settings)
    to = as_path(given["to"])
    with reading_sound(model.folder):
        if adapter == "true":
            what = f"{model.name}, its adapter for PEFT"
            export_adapter(model, storage.root, to=to)
        else:
            what = f"{model.name} as {dtype}"
            export_model(model, storage.root, dtype=dtype, to=to)
    say(f"{what}: {to}")


def _number(name: str, text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= _MOST:
        raise BadInputError(f"{name}={text} must be a whole number from 1 to {_MOST}")
    return int(text)


def _questions(config: RunConfig, model: NamedModel, count: int) -> list[Question]:
    data = None if model.run is None else model.run.read().data
    folder = dataset_folder(config) if data is None else Path(data)
    if not (folder / "test.parquet").is_file():
        raise BadInputError(
            f"{folder} holds no test split to take problems from: countdown-train generate with "
            "these settings makes it, or ask a QUESTION"
        )
    problems = read_problems(folder / "test.parquet")[:count]
    return [question_of(config, problem) for problem in problems]


def _show(number: int, reply: Reply) -> None:
    say(f"\n-- {number} --  {printable(reply.question.shown)}")
    for line in reply.response.splitlines():
        say(f"  {printable(line)}")
    cut = ", cut there" if reply.is_cut else ""
    if (scored := reply.scored) is None:
        say(f"({reply.num_tokens} tokens{cut}; not scored: answer=ANSWER would say what is right)")
        return
    answer = "" if scored.answer is None else f": {printable(scored.answer)}"
    equals = f" = {scored.value}" if scored.value not in (None, scored.answer) else ""
    say(f"{scored.verdict}{answer}{equals} ({reply.num_tokens} tokens{cut})")
