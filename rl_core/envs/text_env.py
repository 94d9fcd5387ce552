"""An env: one class. Its fields are the settings, its methods the problems and the rule.

All but `problems` and `score` has a default here, for questions in plain text (docs/data.md).
Some processes need settings and scores and must load nothing heavy: a method imports pyarrow or a
solver only when it is called.
"""

from __future__ import annotations

import inspect
import math
import random
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, TypeAlias, get_args

from pydantic import Field

from rl_core.envs.rows import (
    Record,
    Row,
    find_answer,
    mistakes_in_chat_args,
    own_prompt,
    prompt_key,
    question_in,
    shown_truth,
    tables_of,
    text_columns,
)
from rl_core.section import FunctionNames, Section, rule
from rl_core.types import ChatTemplate, Message, Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

    from rl_core.envs.sft_examples import SftExamples

TEXT_CHECKS: Final = (
    "text_columns.sql",
    "text_no_nulls.sql",
    "text_unique.sql",
    "text_splits_disjoint.sql",
)
"""SQL checks that any question in plain text must pass; the one of the columns first."""
LONGEST_ANSWER: Final = 1_000
"""Characters of an answer that are compared word for word: a longer one is wrong."""
_MOST_REPEATS: Final = 10_000
"""After so many repeated prompts in a row there are no other prompts, or hardly any."""

Truth: TypeAlias = Any
"""`Problem.ground_truth`: only the env's own methods depend on its shape."""


@dataclass(frozen=True)
class TextProblem:
    """A question to the model, and its right answer."""

    prompt: str
    """The question; `TextEnv.prompt` puts the words of the template around it."""
    truth: Any
    """A text, or any other value of JSON."""
    kind: str = ""
    """Accuracy is reported by kind."""
    solution: str = ""
    """Only for people, and for `TextEnv.difficulty_of`."""


@dataclass(frozen=True)
class EnvTurn:
    """An env's reply to a response; the model continues after it."""

    text: str
    """Tokenized like a prompt: special tokens in it are recognised. Not empty."""
    reward: float = 0.0
    """Reward of the model's turn before it, added to the score of the whole response. Finite, and
    cut if the sum would leave its bounds (`rl_core.rollout.turns.within_bounds`)."""

    def __post_init__(self) -> None:
        if not self.text or not math.isfinite(self.reward):
            raise ValueError(
                f"an env's turn {self.text!r} with reward={self.reward}: it must say something, "
                "and its reward be finite (None ends the response)"
            )


@dataclass(frozen=True)
class Question:
    """A problem that a person asks."""

    shown: str
    """As a person would write it."""
    problem: Problem
    is_scored: bool
    """Whether the right answer is known."""


def rows_of_problems(
    env: TextEnv, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    """Returns both splits of what `problems` yields; ValueError if that is too little."""
    made: dict[tuple[str, ...], Row] = {}
    repeats = 0
    size = train_size + test_size
    for problem in env.problems(random.Random(f"{env.name}/{seed}")):
        row = row_of(env, problem)
        repeats = repeats + 1 if row.key in made else 0
        made.setdefault(row.key, row)
        if len(made) == size or repeats == _MOST_REPEATS:
            break
    if len(made) < size:
        raise ValueError(
            f"env={env.name} has {len(made):,} different prompts: "
            f"data.train_size={train_size:,} and data.test_size={test_size:,} ask for {size:,}"
        )
    rows = list(made.values())
    return tables_of({"train": rows[test_size:], "test": rows[:test_size]}, env.rows.schema())


def row_of(env: TextEnv, problem: TextProblem) -> Row:
    """Returns the row of a problem that an env made."""
    prompt = env.prompt(problem.prompt)
    kind = f"{env.name}/{problem.kind}" if problem.kind else env.name
    return Row(prompt_key(prompt), prompt, problem.truth, kind, problem.solution)


@dataclass(frozen=True)
class Rows:
    """Where the rows of an env's data sets come from; a function gets the env with its settings."""

    make: Callable[..., dict[str, pa.Table]] = rows_of_problems
    """Returns both splits, of (env, train_size=, test_size=, seed=): the same on every machine, or
    ValueError if there are too few rows."""
    package: str | None = None
    """A package whose version the made rows depend on."""
    refuse: Callable[[Any], None] = lambda env: None
    """Raises ValueError if the package is missing, or has no such settings."""
    source: Callable[[Any], str | None] = lambda env: None
    """Returns the data set of the hub that the rows come from; None if they are made."""
    source_size: int | None = None
    """Number of train problems in the default source."""
    columns: tuple[str, ...] = ()
    """Columns of a user's row that are read besides `rows.COLUMNS`; the first names the env."""
    read: Callable[[Any, Record], Row] | None = None
    """Returns a row of a user or of the source as a checked problem, or raises ValueError."""
    solve: Callable[[Sequence[Row]], Sequence[Row | None]] = lambda rows: rows
    """Returns a user's rows with solutions; None for a row without one."""
    schema: Callable[[], pa.Schema] = text_columns
    """Returns the columns of the data set."""


@dataclass(frozen=True)
class Checks:
    """What `validate` needs to check the rows of an env."""

    specific: tuple[str | Path, ...] = ()
    """SQL files in `sql/checks`, or whole paths; each selects the rows that are wrong."""
    shared: tuple[str | Path, ...] = (*TEXT_CHECKS, "text_prompt.sql", "row_count.sql")
    """Checks that other envs have too. The first one checks the columns, before the others."""
    of_generator: tuple[str, ...] = ()
    """Names of checks of the generator's settings: they do not apply to `data.train_files`."""
    of_template: tuple[str, ...] = ()
    """Names of checks that prompts of `data.train_files` may fail: the user wrote them so."""
    parameters: Callable[[Any], Mapping[str, Any]] = lambda env: {}
    """Returns parameters besides `train_size` and `test_size`; others keep a check's default."""
    tables: Callable[[Mapping[str, pa.Table]], Mapping[str, pa.Table]] = lambda splits: {}
    """Returns more tables for the checks."""
    answer_mark: str = ""
    """Text that a response needs to be scored: prompts that ask for another form teach nothing."""
    prompt_of_numbers: Callable[[Any, Sequence[int], int], list[Message]] | None = None
    """Returns the prompt of (env, nums, target) if it depends on nothing else: then its length is
    computed as a sum over its parts."""

    @property
    def files(self) -> tuple[str | Path, ...]:
        """All SQL checks, the check of the columns first."""
        return (*self.shared, *self.specific)


@dataclass(frozen=True)
class Sft:
    """What a model may learn from before reinforcement; `env` is the env with its settings."""

    problems: str
    """Problems that a home-made base model can be taught."""
    chosen_by: str
    """The settings that choose them."""
    is_taught: Callable[[Any], bool]
    """Returns whether an env's settings choose these problems."""
    examples: type[SftExamples]
    """What a home-made base model is made from."""
    lesson: Callable[[Problem, str], Any]
    """Returns the env's data on a problem for `examples`, of (problem, solution)."""
    write_trace: Callable[[Any, Problem, str, random.Random, float], str]
    """Returns a response that a given model may learn from (`sft.data=traces`), of
    (env, problem, solution, rng, give_up_prob)."""
    gives_up: bool = False
    """Whether traces can give up, as searches can; else the probability is 0."""
    weak_models: tuple[str, ...] = ()
    """Sizes of base models that were never seen to learn it by reinforcement learning only."""


@dataclass(frozen=True)
class ImportFrom:
    """What the importer of verl's launch scripts reads of an env."""

    words: tuple[str, ...] = ()
    """In file names, projects and data sources of scripts for this env."""
    remedy: str = ""
    """What replaces a script's data files that are not on this machine."""
    has_truth: Callable[[Truth], bool] = lambda truth: False
    """Returns whether a ground truth is of the env's shape."""
    settings: Callable[[Record, str], dict[str, Any]] = lambda row, model: {}
    """Returns settings by dotted key, for the first row and a model's lower-case name."""


class TextEnv(Section):
    """An env of questions in plain text, chosen by `env=my_module:MyClass`."""

    name: str = ""
    """Chosen by `env=NAME`."""
    prompt_template: Literal["chat", "base"] = "chat"
    """`chat`: the prompt in the tokenizer's own tags; `base`: the prompt as it is."""
    chat_args: dict[str, Any] = Field({})
    """Arguments for the model's chat template: {enable_thinking: false} turns thinking off, which
    Qwen3 and SmolLM3 do by default, in data, training, evaluation and `ask`."""
    answer_from: str = "strict"
    """Where a response's answer may stand: a Literal whose first value is the strictest."""
    format_score: float = Field(0.0, ge=0, le=1)
    """Score of a response with an answer that is not correct."""
    full_score: float = Field(1.0, gt=0)
    """Score of a correct response."""
    max_turns: int = Field(1, ge=1)
    """Most model turns per problem; above 1 the env replies after each turn."""
    reward: FunctionNames = ()
    """package.module:function, a reward of your own with verl's signature, see rl_core/rewards/.
    Of several, [a:f, b:g], the first one says what is correct."""
    reward_weights: tuple[float, ...] = ()
    """Weights of several functions in the score, [1.0, 0.2], one each; by default 1."""

    templates: ClassVar[Mapping[str, str]] = {}
    """Texts around a `{question}`, by `prompt_template`; without any, a prompt is the question."""
    stop: ClassVar[tuple[str, ...]] = ()
    """Texts after which `reply` is called; each ends in an ASCII character. Without any, it is
    called when the response has ended by itself."""
    rows: ClassVar[Rows] = Rows()
    """Rows that `problems` does not make: the user's, the hub's, or those of a generator."""
    checks: ClassVar[Checks] = Checks()
    """What is checked of the rows."""
    sft: ClassVar[Sft | None] = None
    """What a model may learn from before reinforcement; None: nothing."""
    import_from: ClassVar[ImportFrom] = ImportFrom()
    """How one of verl's launch scripts is recognised as one for this env."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Names the class as `env=` finds it, if it has no name of its own."""
        super().__pydantic_init_subclass__(**kwargs)
        if "name" not in inspect.get_annotations(cls):  # `__annotations__` may be the base's
            cls.__pydantic_fields__["name"].default = f"{cls.__module__}:{cls.__qualname__}"
            cls.model_rebuild(force=True)

    @rule
    def _agrees(self) -> Iterator[str]:
        if self.format_score >= self.full_score:
            yield (
                f"env.format_score={self.format_score:g} of a wrong answer must be below "
                f"env.full_score={self.full_score:g} of a right one"
            )
        count = len(self.reward)
        if len({*self.reward}) < count:
            yield (f"env.reward={[*self.reward]} names a function twice: name it once")
        if self.reward_weights and len(self.reward_weights) != count:
            yield (
                f"env.reward_weights={[*self.reward_weights]} must be one for each of {count} in "
                "env.reward"
            )
        yield from mistakes_in_chat_args(self.chat_args, self.prompt_template)

    @property
    def chat_template(self) -> ChatTemplate:
        """How a prompt becomes text, see `rl_core.data.prompts.encode_prompt`."""
        return self.prompt_template == "chat" and (self.chat_args or True)

    # What an env must have, and what it may add.

    def problems(self, rng: random.Random) -> Iterator[TextProblem]:
        """Yields problems, those of the test split first; a prompt that comes again is left out."""
        raise NotImplementedError

    def prompt(self, question: str) -> list[Message]:
        """Returns the prompt of a question, in the words of the template."""
        text = self.templates.get(self.prompt_template, "{question}")
        return [Message(role="user", content=text.replace("{question}", question))]

    def score(self, response: str, truth: Any) -> ScoredText:
        """Returns `scored(...)`; bounded in time and memory for any text."""
        raise NotImplementedError

    def scored(self, answer: str | None, *, right: bool) -> ScoredText:
        """Returns the score of a response that gives this answer; None: it gives no answer."""
        if answer is None:
            return ScoredText(0.0, "no_answer", None)
        if right:
            return ScoredText(self.full_score, "correct", answer, answer)
        return ScoredText(self.format_score, "wrong_value", answer, answer)

    def reply(self, response: str, truth: Any) -> EnvTurn | None:
        """Returns the env's reply to a response so far, earlier replies included; None ends it.

        Bounded in time and memory for any text.
        """
        raise NotImplementedError

    @staticmethod
    def difficulty_of(truth: Any, solution: str) -> str:
        """Returns a name that problems share if they are about as hard, for `data.curriculum`."""
        return ""

    # Questions of people, and what the class is.

    def read_question(self, text: str, answer: str | None) -> Question:
        """Returns a person's question, or raises ValueError; `answer` is None if not known."""
        return Question(
            text,
            Problem(0, self.name, tuple(self.prompt(text)), answer or "", 0),
            is_scored=answer is not None,
        )

    def show_problem(self, problem: Problem) -> str:
        """Returns a problem as a person would write it, its answer included."""
        question = question_in(problem.messages[-1]["content"])
        return f"{question} (the answer is {shown_truth(problem.ground_truth)})"

    @classmethod
    def makes_problems(cls) -> bool:
        """Returns whether there are problems other than the user's."""
        return cls.rows.make is not rows_of_problems or cls.problems is not TextEnv.problems

    @property
    def slug(self) -> str:
        """The name as part of a folder's name, without the colon of a module's env."""
        return self.name.replace(":", ".")


def prompt_in(env: TextEnv, record: Record, question: str | None) -> list[Message]:
    """Returns a row's own prompt, else that of its question; ValueError if it has neither."""
    if (prompt := own_prompt(record)) is not None:
        return prompt
    if question is None or not question.strip():
        raise ValueError("it has neither `question` nor `prompt`: add one")
    return env.prompt(question)


def score_words(env: TextEnv, response: str, truth: str) -> ScoredText:
    """Returns the score of an answer in tags, which must be the truth word for word.

    Case, white space, the form of Unicode (NFKC) and a full stop at the end do not count.
    Linear in the response's length.
    """
    raw = find_answer(response, env.answer_from).strip()
    if not raw:
        return env.scored(None, right=False)
    value = _normal_form(raw) if len(raw) <= LONGEST_ANSWER else None
    if value == _normal_form(truth):
        return ScoredText(env.full_score, "correct", raw, value)
    return ScoredText(env.format_score, "wrong_value", raw[:LONGEST_ANSWER], value)


def strict_and_lenient(env: TextEnv) -> tuple[TextEnv, TextEnv]:
    """Returns the env with the strictest place of an answer, and with the most lenient."""
    places = get_args(type(env).model_fields["answer_from"].annotation) or ("strict",)
    return (
        env.model_copy(update={"answer_from": places[0]}),
        env.model_copy(update={"answer_from": places[-1]}),
    )


def _normal_form(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".")
