"""What a family of problems is: one frozen record of values and functions, in one folder.

What it takes to add one is said in `rl_core/envs/__init__.py`. A function that needs pyarrow or
numpy imports it when it is called: settings and scores are wanted where nothing heavy may load.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from rl_core.envs.settings import EnvSettings
from rl_core.envs.sft_examples import SftExamples
from rl_core.envs.user_rows import OwnProblem, Record
from rl_core.types import Message, Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

Settings = TypeVar("Settings", bound=EnvSettings)
SettingsOf = TypeVar("SettingsOf", bound=EnvSettings, contravariant=True)
Truth: TypeAlias = Any
"""`Problem.ground_truth` of the env: only its own functions know the shape."""
Value: TypeAlias = int | float | str | bool


@dataclass(frozen=True)
class Question:
    """What a model is asked."""

    shown: str
    """As a person would write it."""
    problem: Problem
    is_scored: bool
    """Whether the right answer is known."""


class Generate(Protocol[SettingsOf]):
    """Makes both splits; the same arguments give the same rows on every machine."""

    def __call__(
        self, env: SettingsOf, /, *, train_size: int, test_size: int, seed: int
    ) -> dict[str, pa.Table]:
        """Returns the rows of `train` and `test`, or raises ValueError in a user's words."""


class ParametersOf(Protocol[SettingsOf]):
    """Values for the parameters of the env's checks."""

    def __call__(
        self, env: SettingsOf, /, *, train_size: int, test_size: int
    ) -> Mapping[str, Value]:
        """Returns them by name; one that is not there keeps its check's default."""


class ExamplesOf(Protocol[SettingsOf]):
    """What a home-made base model is made from."""

    def __call__(
        self,
        env: SettingsOf,
        /,
        *,
        give_up_prob: float,
        train: Sequence[tuple[Problem, str]],
        test: Sequence[tuple[Problem, str]],
    ) -> SftExamples:
        """Returns the examples of (problem, solution) pairs, or raises ValueError."""


@dataclass(frozen=True, kw_only=True)
class Source(Generic[Settings]):
    """Where an env's rows come from where they are not generated: `env.source`."""

    name: Callable[[Settings], str]
    """A folder, or a data set of the hub."""
    num_problems: int
    """Of the train split of the hub's data set."""
    columns: tuple[str, ...]
    """What is read of its rows."""
    read_row: Callable[[Record], Any]
    """Raises ValueError in words that follow `row 7 `."""
    table: Callable[[Settings, str, Sequence[Any]], pa.Table]
    """(settings, split, what `read_row` returned) -> the rows of one split."""


@dataclass(frozen=True, kw_only=True)
class Checks(Generic[Settings]):
    """The SQL checks of an env's data set, beside those of `sql/checks` that belong to no env.

    Each is the name of a file in `sql/checks`, or the whole path of one that lies elsewhere.
    """

    columns: str | Path
    """Which columns there are: runs first, as the others need them."""
    rows: tuple[str | Path, ...] = ()
    of_generated_rows: tuple[str, ...] = ()
    """Names of those that say nothing of `data.train_files`, but what the generator was asked."""
    of_templates: tuple[str, ...] = ()
    """Names of those that prompts of `data.train_files` may fail: the user wrote them so."""
    parameters: ParametersOf[Settings]
    tables: Callable[[Mapping[str, pa.Table]], tuple[dict[str, pa.Table], dict[str, str]]] = (
        lambda splits: ({}, {})
    )
    """What the checks read beside `train` and `test`, and words to add to what a check proves."""

    @property
    def files(self) -> tuple[str | Path, ...]:
        """All of the env's own."""
        return (self.columns, *self.rows)


@dataclass(frozen=True, kw_only=True)
class HomeMadeModel(Generic[Settings]):
    """How a base model is made where `model.path` names none."""

    is_taught: Callable[[Settings], bool]
    """Whether there are examples for problems of these settings."""
    what: str
    """Such problems, in words."""
    choose: str
    """The settings that choose them."""
    examples: ExamplesOf[Settings]


@dataclass(frozen=True, kw_only=True)
class LaunchScripts:
    """What tells the importer of verl's launch scripts that one is about this env."""

    words: tuple[str, ...]
    """Parts of the names of files, projects and data sources."""
    has_columns: Callable[[Record], bool]
    """Whether a row has the env's own columns."""
    has_truth: Callable[[Truth], bool]
    """Whether a ground truth is of the env's shape."""
    made: str
    """What becomes of data files that are not on this machine, and what else to do."""
    settings: Callable[[Record, str], dict[str, Any]] = lambda row, model: {}
    """(first row, lower-case name of the model) -> settings, by dotted key."""


@dataclass(frozen=True)
class EnvTurn:
    """What an env says to a response, which the model then goes on with."""

    text: str
    """Tokenized as a prompt is: a chat's marks in it are recognised. Not empty."""
    reward: float = 0.0
    """Of the model's turn that it answers, beside the score of the whole response: finite, and it
    counts as far as the bounds of a reward let it (`rl_core.rollout.turns.within_bounds`)."""

    def __post_init__(self) -> None:
        if not self.text or not math.isfinite(self.reward):
            raise ValueError(
                f"an env's turn {self.text!r} with reward={self.reward}: it must say something, "
                "and its reward be finite (None ends the response)"
            )


@dataclass(frozen=True, kw_only=True)
class Answers(Generic[Settings]):
    """How an env answers responses where `max_turns` lets it."""

    stop: tuple[str, ...] = ()
    """Texts after which the model waits for an answer; each ends in an ASCII character.

    Without any, or where the response ends by itself, it is answered when it has ended.
    """
    answer: Callable[[Settings, Truth, str], EnvTurn | None]
    """(settings, truth, the response so far, the env's words included) -> what the env says; None
    where the response is over. Bounded in time and memory for any text."""


@dataclass(frozen=True, kw_only=True)
class Env(Generic[Settings]):
    """A family of problems."""

    settings: type[Settings]
    """Its model; `name` has the env's name as the default."""
    title: str
    """As people write it."""
    data_source: str
    """verl's name of its data: the column of every row."""
    answer_from: tuple[str, str]
    """The strictest and the most lenient value of the setting `answer_from`."""
    answer_mark: str = "<answer>"
    """What a response must hold to be scored: prompts that ask for it otherwise teach nothing."""
    score: Callable[[Settings, str, Truth], ScoredText]
    """(settings, response, truth): total, bounded in time and memory for any text."""
    generate: Generate[Settings] | None
    """Called where `settings.is_generated`; None where there are no problems but the user's."""
    answers: Answers[Settings] | None = None
    """Without it `max_turns` is 1."""
    made_by: str | None = None
    """A package whose version the generated rows depend on."""
    source: Source[Settings] | None = None
    """Read where not `settings.is_generated`."""
    own_columns: tuple[str, ...]
    """What is read of a user's row beside `user_rows.COLUMNS`."""
    read_row: Callable[[Settings, Record], OwnProblem]
    """A user's row as a checked problem; ValueError names value, limit and remedy."""
    with_solutions: Callable[[Sequence[OwnProblem]], Sequence[OwnProblem | None]] = (
        lambda problems: problems
    )
    """The user's problems with what a solver says of them; None where there is no solution."""
    user_table: Callable[[str, Sequence[OwnProblem]], pa.Table]
    """(split, problems) -> the rows of one split."""
    checks: Checks[Settings]
    prompt_of_numbers: Callable[[Settings, Sequence[int], int], list[Message]] | None = None
    """The prompt of a row's columns `nums` and `target`, if these are all that prompts differ in.

    Then prompts' lengths are measured by their parts.
    """
    read_question: Callable[[Settings, str, str | None], Question]
    """(settings, a person's words, the answer if it is told); ValueError says what is wrong."""
    show: Callable[[Problem], str]
    """A problem as a person would write it, its answer included."""
    home_made: HomeMadeModel[Settings] | None = None
    write_trace: Callable[[Settings, Problem, str, random.Random, float], str] | None = None
    """(settings, problem, its solution, chance, `sft.give_up_prob`) -> a response that a given
    model may learn from."""
    traces_give_up: bool = False
    """Whether they are searches, which can: else the probability is 0."""
    difficulty: Callable[[Truth, str], str] = lambda truth, solution: ""
    """(truth, a solution or nothing) -> a name of the problems that are about as hard, for
    `data.curriculum`; they have their `data_source` in common besides."""
    weak_models: tuple[str, ...] = ()
    """Sizes of base models that were not seen to learn it by reinforcement alone."""
    launch_scripts: LaunchScripts | None = None

    @property
    def name(self) -> str:
        """What `env=NAME` chooses."""
        return str(self.settings.model_fields["name"].default)

    def strict_and_lenient(self, env: Settings) -> tuple[Settings, Settings]:
        """Returns the settings with the strictest place of an answer, and the most lenient."""
        strict, lenient = self.answer_from
        return (
            env.model_copy(update={"answer_from": strict}),
            env.model_copy(update={"answer_from": lenient}),
        )
