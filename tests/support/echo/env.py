"""The record of `echo`: a problem is a letter, and a response that says it first is right."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from rl_core.envs.record import Checks, Env, Question
from rl_core.envs.settings import EnvSettings
from rl_core.envs.user_rows import OwnProblem, Record, choose_prompt, columns_of, own_prompt, shown
from rl_core.schema import dataset_schema
from rl_core.types import Message, Problem, ScoredText

DATA_SOURCE = "echo"
SCHEMA = dataset_schema(pa.struct([("letter", pa.string())]))


class EchoConfig(EnvSettings):
    """Letters to be said again."""

    name: Literal["echo"] = "echo"
    """Chosen by `env=echo`."""
    prompt_template: Literal["base"] = "base"
    """One text."""
    answer_from: Literal["first", "anywhere"] = "first"
    """`first`: the first letter of the response; `anywhere`: any of its letters."""
    num_letters: int = Field(26, ge=2, le=26)
    """Letters that are asked for, from a."""


def render(letter: str) -> list[Message]:
    return [Message(role="user", content=f"Say {letter}: ")]


def score(env: EchoConfig, response: str, truth: dict[str, str]) -> ScoredText:
    said = [character for character in response if character in string.ascii_lowercase]
    if not said:
        return ScoredText(0.0, "no_answer", None)
    read = said if env.answer_from == "anywhere" else said[:1]
    if truth["letter"] in read:
        return ScoredText(env.full_score, "correct", truth["letter"], truth["letter"])
    return ScoredText(env.format_score, "wrong_value", said[0], said[0])


def problem_of(letter: str) -> OwnProblem:
    return OwnProblem((letter,), render(letter), "base", {"letter": letter}, solution=letter)


def table(split: str, problems: Sequence[OwnProblem]) -> pa.Table:
    return pa.Table.from_pydict(columns_of(DATA_SOURCE, split, problems), schema=SCHEMA)


def generate(
    env: EchoConfig, /, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    rng, letters = random.Random(seed), string.ascii_lowercase[: env.num_letters]
    return {
        split: table(split, [problem_of(rng.choice(letters)) for _ in range(size)])
        for split, size in (("train", train_size), ("test", test_size))
    }


def read_row(env: EchoConfig, record: Record) -> OwnProblem:
    letter = record.get("letter")
    if not isinstance(letter, str) or len(letter) != 1:
        raise ValueError(f"letter={shown(letter)} must be one letter")
    own = problem_of(letter)
    prompt, template = choose_prompt(own_prompt(record), ("base",), lambda _: own.prompt)
    return OwnProblem(own.key, prompt, template, own.truth, own.solution)


def read_question(env: EchoConfig, text: str, answer: str | None) -> Question:
    problem = Problem(0, DATA_SOURCE, tuple(render(text)), {"letter": text}, 0)
    return Question(show(problem), problem, is_scored=True)


def show(problem: Problem) -> str:
    truth: Any = problem.ground_truth
    return f"say {truth['letter']}"


ECHO = Env(
    settings=EchoConfig,
    title="Echo",
    data_source=DATA_SOURCE,
    answer_from=("first", "anywhere"),
    score=score,
    generate=generate,
    own_columns=("letter",),
    read_row=read_row,
    user_table=table,
    checks=Checks(
        columns=Path(__file__).with_name("echo_columns.sql"),
        rows=(Path(__file__).with_name("echo_letters.sql"),),
        of_generated_rows=("echo_letters",),
        parameters=lambda env, /, *, train_size, test_size: {"num_letters": env.num_letters},
    ),
    read_question=read_question,
    show=show,
)
