"""The env `echo`: a problem is a letter, and a response that says it first is right."""

import random
import string
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
from pydantic import Field

from rl_core.envs.rows import Record, Row, own_prompt, shown, tables_of
from rl_core.envs.text_env import Checks, Question, Rows, TextEnv
from rl_core.schema import dataset_schema
from rl_core.types import Message, Problem, ScoredText

DATA_SOURCE = "echo"


def render(letter: str) -> list[Message]:
    return [Message(role="user", content=f"Say {letter}: ")]


def row_of(letter: str) -> Row:
    return Row((letter,), render(letter), {"letter": letter}, DATA_SOURCE, letter)


def make(env: TextEnv, *, train_size: int, test_size: int, seed: int) -> dict[str, pa.Table]:
    rng, letters = random.Random(seed), string.ascii_lowercase[: env.num_letters]
    rows = {
        split: [row_of(rng.choice(letters)) for _ in range(size)]
        for split, size in (("train", train_size), ("test", test_size))
    }
    return tables_of(rows, columns())


def read_row(env: TextEnv, record: Record) -> Row:
    letter = record.get("letter")
    if not isinstance(letter, str) or len(letter) != 1:
        raise ValueError(f"letter={shown(letter)} must be one letter")
    own = row_of(letter)
    prompt = own_prompt(record) or own.prompt
    return Row(own.key, prompt, own.truth, DATA_SOURCE, own.solution)


def columns() -> pa.Schema:
    return dataset_schema(pa.struct([("letter", pa.string())]))


class EchoConfig(TextEnv):
    """Letters to be said again."""

    name: Literal["echo"] = "echo"
    """Chosen by `env=echo`."""
    prompt_template: Literal["base"] = "base"
    """One text."""
    answer_from: Literal["first", "anywhere"] = "first"
    """`first`: the first letter of the response; `anywhere`: any of its letters."""
    num_letters: int = Field(26, ge=2, le=26)
    """Letters that are asked for, from a."""

    rows: ClassVar = Rows(make=make, columns=("letter",), read=read_row, schema=columns)
    checks: ClassVar = Checks(
        specific=(Path(__file__).with_name("echo_letters.sql"),),
        shared=(Path(__file__).with_name("echo_columns.sql"),),
        of_generator=("echo_letters",),
        parameters=lambda env: {"num_letters": env.num_letters},
    )

    def score(self, response: str, truth: dict[str, str]) -> ScoredText:
        said = [character for character in response if character in string.ascii_lowercase]
        if not said:
            return ScoredText(0.0, "no_answer", None)
        read = said if self.answer_from == "anywhere" else said[:1]
        if truth["letter"] in read:
            return ScoredText(self.full_score, "correct", truth["letter"], truth["letter"])
        return ScoredText(self.format_score, "wrong_value", said[0], said[0])

    def read_question(self, text: str, answer: str | None) -> Question:
        problem = Problem(0, DATA_SOURCE, tuple(render(text)), {"letter": text}, 0)
        return Question(self.show_problem(problem), problem, is_scored=True)

    def show_problem(self, problem: Problem) -> str:
        truth: Any = problem.ground_truth
        return f"say {truth['letter']}"
