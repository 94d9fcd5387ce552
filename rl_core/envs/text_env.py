"""An env in one class: its settings are the fields, its problems and its rule the methods.

Everything else that `Env` (record.py) needs is the same for all problems in words: it stands here.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, get_args

from rl_core.envs.record import Answers, Checks, Env, EnvTurn, Question
from rl_core.envs.settings import EnvSettings
from rl_core.envs.text_problems import CHECKS, prompt_key, shown_truth, text_table
from rl_core.envs.user_rows import OwnProblem
from rl_core.types import Message, Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_REPEATS = 10_000
"""Prompts in a row that were there already: then there are no others, or hardly any."""


@dataclass(frozen=True)
class TextProblem:
    """What a model is asked, and what is right."""

    prompt: str
    truth: Any
    """A text, or any other value of JSON."""
    kind: str = ""
    """Accuracy is reported by kind."""
    solution: str = ""
    """Only for people, and for `TextEnv.difficulty_of`."""


class TextEnv(EnvSettings):
    """An env of questions in words: a class with `problems` and `score` is one.

    `env=my_module:MyClass` chooses it; with a default for the field `name`, a package can offer
    it by an entry point of that name.
    """

    name: str = ""
    """Chosen by `env=NAME`."""
    prompt_template: Literal["chat", "base"] = "chat"
    """`chat`: the prompt in the tokenizer's own tags; `base`: the prompt as it is."""
    answer_from: str = "strict"
    """Where a response's answer may stand."""

    checks: ClassVar[tuple[str | Path, ...]] = ()
    """SQL files in `sql/checks`, or whole paths; each selects the rows that are wrong."""
    stop: ClassVar[tuple[str, ...]] = ()
    """Texts after which `reply` is asked."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Names the class as `env=` finds it, if it has no name of its own."""
        super().__pydantic_init_subclass__(**kwargs)
        if "name" not in cls.__annotations__:
            cls.__pydantic_fields__["name"].default = f"{cls.__module__}:{cls.__qualname__}"
            cls.model_rebuild(force=True)

    def problems(self, rng: random.Random) -> Iterator[TextProblem]:
        """Yields problems, those of the test split first; a prompt that comes again is left out."""
        raise NotImplementedError

    def score(self, response: str, truth: Any) -> ScoredText:
        """Returns `scored(...)`; bounded in time and memory for any text."""
        raise NotImplementedError

    def reply(self, response: str, truth: Any) -> EnvTurn | None:
        """Returns what the env says to a response, of which `env.max_turns` allows more than one.

        Args:
            response: so far, with the env's own words.
            truth: of the problem.
        """
        raise NotImplementedError

    @staticmethod
    def difficulty_of(truth: Any, solution: str) -> str:
        """Returns a name for problems that are about as hard, for `data.curriculum`."""
        return ""

    def scored(self, answer: str | None, *, right: bool) -> ScoredText:
        """Returns the score of the answer that a response gives; None if it gives none."""
        if answer is None:
            return ScoredText(0.0, "no_answer", None)
        if right:
            return ScoredText(self.full_score, "correct", answer, answer)
        return ScoredText(self.format_score, "wrong_value", answer, answer)

    @classmethod
    def record(cls) -> Env[Any]:
        """Returns the env as the rest of the system knows it."""
        readings = get_args(cls.model_fields["answer_from"].annotation) or ("strict",)
        answers: Answers[Any] = Answers(
            stop=cls.stop, answer=lambda env, truth, text: env.reply(text, truth)
        )
        return Env(
            settings=cls,
            title=(cls.__doc__ or cls.__name__).partition("\n")[0].rstrip("."),
            data_source=cls.model_fields["name"].default,
            answer_from=(readings[0], readings[-1]),
            answer_mark="",
            score=lambda env, response, truth: env.score(response, truth),
            generate=_generate,
            answers=None if cls.reply is TextEnv.reply else answers,
            own_columns=(),
            read_row=_read_row,
            user_table=_user_table,
            checks=Checks(
                columns="text_columns.sql",
                rows=(*CHECKS, "row_count.sql", *cls.checks),
                parameters=lambda env, /, **sizes: sizes,
            ),
            read_question=_read_question,
            show=lambda problem: (
                f"{problem.messages[-1]['content']} "
                f"(the answer is {shown_truth(problem.ground_truth)})"
            ),
            difficulty=cls.difficulty_of,
        )


def _generate(
    env: TextEnv, /, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    made: list[OwnProblem] = []
    seen: set[tuple[str, ...]] = set()
    repeats = 0
    for one in env.problems(random.Random(f"{env.name}/{seed}")):
        prompt = [Message(role="user", content=one.prompt)]
        key = prompt_key(prompt)
        repeats = repeats + 1 if key in seen else 0
        if repeats == 0:
            seen.add(key)
            source = f"{env.name}/{one.kind}" if one.kind else env.name
            made.append(
                OwnProblem(
                    key, prompt, env.prompt_template, one.truth, one.solution, data_source=source
                )
            )
        if len(made) == train_size + test_size or repeats == _MOST_REPEATS:
            break
    if len(made) < train_size + test_size:
        raise ValueError(
            f"env={env.name} has {len(made):,} different prompts: data.train_size={train_size:,} "
            f"and data.test_size={test_size:,} ask for {train_size + test_size:,}"
        )
    splits = {"train": made[test_size:], "test": made[:test_size]}
    return {
        split: text_table(split, rows, [row.data_source for row in rows])
        for split, rows in splits.items()
    }


def _read_row(env: TextEnv, record: Any) -> NoReturn:
    raise ValueError(f"env={env.name} makes its own problems: env=custom takes rows of yours")


def _user_table(split: str, problems: Any) -> NoReturn:
    raise AssertionError("no row was read")


def _read_question(env: TextEnv, text: str, answer: str | None) -> Question:
    asked = (Message(role="user", content=text),)
    problem = Problem(0, env.name, asked, answer or "", 0)
    return Question(text, problem, is_scored=answer is not None)
