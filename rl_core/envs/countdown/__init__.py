"""Countdown: combine all the numbers, each once, with + - * / to make the target."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.countdown.templates import (
    DATA_SOURCE,
    Template,
    message_templates,
    render_messages,
)
from rl_core.envs.countdown.traces import FEWEST, MOST, SearchExamples, write_trace
from rl_core.envs.rows import Record, Row, own_prompt, shown, struct_of
from rl_core.envs.text_env import Checks, ImportFrom, Question, Rows, Sft, TextEnv
from rl_core.section import rule
from rl_core.types import Message, Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

_FEWEST: Final = 2
_MOST_DIGITS: Final = 18
"""Of a number in a person's puzzle, so that it fits into an int64 column."""
_RANGES: Final = ("operands", "number", "target")


def _imported_settings(row: Record, model: str) -> dict[str, Any]:
    """Returns how prompts reach the model: raw as TinyZero's, else by a chat template."""
    prompt = row.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
        text = str(prompt[0].get("content"))
        if text.startswith("<|im_start|>"):
            return {"env.prompt_template": "qwen-instruct"}
        is_raw = len(prompt) == 1 and re.search(r"(^|\n)Assistant:", text)
        return {} if is_raw else {"env.prompt_template": "chat"}
    return {"env.prompt_template": "qwen-instruct"} if "instruct" in model else {}


def _search_trace(
    env: TextEnv, problem: Problem, solution: str, rng: random.Random, give_up_prob: float
) -> str:
    trace = write_trace(*_numbers_and_target(problem), give_up_prob=give_up_prob, rng=rng).text
    return f"<think>{trace}" if env.prompt_template == "chat" else trace


def _make_puzzles(
    env: Countdown, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    """Returns both splits, cut from one draw of puzzles."""
    from rl_core.envs.countdown.puzzles import countdown_table, generate_puzzles

    puzzles = generate_puzzles(**env.ranges, size=train_size + test_size, seed=seed)
    parts = {"train": puzzles[test_size:], "test": puzzles[:test_size]}
    return {
        split: countdown_table(part, split=split, template=env.prompt_template)
        for split, part in parts.items()
    }


def _read_row(env: Countdown, record: Record) -> Row:
    """Returns a puzzle, not yet solved: `{nums, target}`, or a row of verl or TinyZero."""
    numbers, target = stated_puzzle(record)
    return Row(
        (tuple(sorted(numbers)), target),
        own_prompt(record) or _prompt(env, numbers, target),
        {"target": target, "numbers": numbers},
        DATA_SOURCE,
        columns={"nums": numbers, "target": target},
    )


def _with_solutions(rows: Sequence[Row]) -> list[Row | None]:
    """Returns each puzzle with a solution and how many there are; None if there is none."""
    from rl_core.envs.countdown.solver import solve_many

    solved = solve_many([row.key[0] for row in rows], [row.key[1] for row in rows])
    return [
        None if solution is None else replace(row, solution=solution, num_solutions=count)
        for row, (solution, count) in zip(rows, solved, strict=True)
    ]


def _columns() -> pa.Schema:
    """Returns verl's columns, and `nums` and `target`."""
    from rl_core.envs.countdown.puzzles import COUNTDOWN_DATASET

    return COUNTDOWN_DATASET


def _check_parameters(env: Countdown) -> dict[str, Any]:
    """Returns the ranges of the settings, and the words of the template around a puzzle."""
    *system, question = message_templates(env.prompt_template)
    before, between, after = re.split("{numbers}|{target}", question["content"])
    return {
        **env.model_dump(include={f"{end}_{of}" for end in ("min", "max") for of in _RANGES}),
        "data_source": DATA_SOURCE,
        "system": system[0]["content"] if system else "none",
        "before": before,
        "between": between,
        "after": after,
    }


def _check_tables(splits: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Returns solutions with the reward's verdict on them, which SQL cannot compute."""
    from rl_core.envs.countdown.puzzles import solutions_table

    return {"solutions": solutions_table(splits)}


def _prompt(env: Countdown, numbers: Sequence[int], target: int) -> list[Message]:
    return render_messages(env.prompt_template, numbers, target)


class Countdown(TextEnv):
    """The Countdown problem family: combine all numbers, each once, to make the target."""

    name: Literal["countdown"] = "countdown"
    """Chosen by `env=countdown`."""
    min_operands: int = Field(3, ge=2, le=6)
    """Fewest numbers of a problem."""
    max_operands: int = Field(4, ge=2, le=6)
    """Most numbers of a problem."""
    min_number: int = Field(1, ge=1)
    """Smallest number."""
    max_number: int = Field(99, ge=1, le=999)
    """Largest number."""
    min_target: int = Field(10, ge=1)
    """Smallest target."""
    max_target: int = Field(99, ge=1, le=9999)
    """Largest target."""
    prompt_template: Template = "base"  # type: ignore[assignment]  # another choice of texts
    """`base`: TinyZero's text; `qwen-instruct`: with Qwen's tags; `chat`: the tokenizer's own."""
    answer_from: Literal["last_line", "anywhere"] = "anywhere"
    """Where the answer may be: `anywhere`, or on the `last_line`, as in TinyZero."""
    format_score: float = Field(0.1, ge=0, le=1)
    """Score of a response with an answer that is not correct."""

    rows: ClassVar = Rows(
        make=_make_puzzles,
        columns=("nums", "numbers", "target"),
        read=_read_row,
        solve=_with_solutions,
        schema=_columns,
    )
    checks: ClassVar = Checks(
        specific=(
            "countdown_ground_truth.sql",
            "countdown_no_nulls.sql",
            "countdown_number_range.sql",
            "countdown_operand_count.sql",
            "countdown_prompt.sql",
            "countdown_solution.sql",
            "countdown_splits_disjoint.sql",
            "countdown_target_range.sql",
            "countdown_unique.sql",
        ),
        shared=("countdown_columns.sql", "labels.sql", "row_count.sql"),
        of_generator=(
            "countdown_number_range",
            "countdown_operand_count",
            "row_count",
            "countdown_target_range",
        ),
        of_template=("countdown_prompt",),
        parameters=_check_parameters,
        tables=_check_tables,
        answer_mark="<answer>",
        prompt_of_numbers=_prompt,
    )
    sft: ClassVar = Sft(
        f"Countdown with {FEWEST} or {MOST} numbers",
        f"env=countdown env.min_operands={FEWEST} env.max_operands={MOST}",
        lambda env: env.min_operands >= FEWEST and env.max_operands <= MOST,
        SearchExamples,
        lambda problem, solution: _numbers_and_target(problem),
        _search_trace,
        gives_up=True,
        weak_models=("0.5b",),
    )
    import_from: ClassVar = ImportFrom(
        ("countdown", "tinyzero"),
        "the run makes puzzles of its own; data.train_files=FILE names yours",
        lambda truth: isinstance(truth, dict) and {"target", "numbers"} <= {*truth},
        _imported_settings,
    )

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest values: of `operands`, how many there are, `number` and `target`."""
        return {of: (getattr(self, f"min_{of}"), getattr(self, f"max_{of}")) for of in _RANGES}

    @rule
    def _ordered(self) -> Iterator[str]:
        for what, (low, high) in self.ranges.items():
            if low > high:
                yield (f"env.min_{what}={low} is above env.max_{what}={high}: swap them")

    def score(self, response: str, truth: Mapping[str, Any]) -> ScoredText:
        """Reads and evaluates the expression that a response gives."""
        return score_response(
            response,
            truth["numbers"],
            truth["target"],
            answer_from=self.answer_from,
            format_score=self.format_score,
            full_score=self.full_score,
        )

    @staticmethod
    def difficulty_of(truth: Any, solution: str) -> str:
        """Returns how many numbers there are, and the operators of a solution, sorted."""
        return f"{len(truth['numbers'])} {''.join(sorted(c for c in solution if c in '+-*/'))}"

    def read_question(self, text: str, answer: str | None) -> Question:
        """Reads numbers and, last, the target: `3 14 7 = 35`."""
        words = re.findall(r"\d+", text)
        longest = max((word for word in words if len(word) > _MOST_DIGITS), default="", key=len)
        if longest:
            raise ValueError(f"{longest[:20]}... has {len(longest)} digits: at most {_MOST_DIGITS}")
        numbers = [int(word) for word in words]
        if not re.fullmatch(r"[\s\d,;\[\](){}=:>→-]*", text) or len(numbers) <= _FEWEST:
            raise ValueError(
                f"{text!r} is no puzzle: write numbers and, last, the target, as '3 14 7 = 35' "
                "(env=gsm8k takes word problems)"
            )
        if answer is not None:
            raise ValueError("a puzzle's answer is found by its rule: answer= is for env=gsm8k")
        *numbers, target = numbers
        problem = Problem(
            0,
            DATA_SOURCE,
            tuple(_prompt(self, numbers, target)),
            {"numbers": numbers, "target": target},
            0,
        )
        return Question(self.show_problem(problem), problem, is_scored=True)

    def show_problem(self, problem: Problem) -> str:
        """Returns the numbers and the target."""
        numbers, target = _numbers_and_target(problem)
        return f"{', '.join(map(str, numbers))} = {target}"


def _numbers_and_target(problem: Problem) -> tuple[tuple[int, ...], int]:
    truth: Any = problem.ground_truth
    return tuple(truth["numbers"]), truth["target"]


def _from_text(value: Any) -> Any:
    """Returns a list or an object that a file holds as JSON text; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


_Whole = Annotated[int, BeforeValidator(_number)]


class _Puzzle(BaseModel):
    """What the solver takes; 40.0 and "40" are read as 40, and JSON text as a list."""

    numbers: Annotated[
        list[Annotated[_Whole, Field(ge=1, le=999)]],
        BeforeValidator(_from_text),
        Field(min_length=_FEWEST, max_length=6),
    ]
    target: Annotated[_Whole, Field(ge=1, lt=10**18)]


def stated_puzzle(record: Record) -> tuple[list[int], int]:
    """Returns the numbers and the target that a row states, once or twice, or raises ValueError."""
    truth = _from_text(struct_of(record, "reward_model").get("ground_truth"))
    numbers = record.get("numbers") if record.get("nums") is None else record["nums"]
    columns = {"numbers": numbers, "target": record.get("target")}
    stated: list[Record] = [columns] if columns != {"numbers": None, "target": None} else []
    if truth is not None:
        if not isinstance(truth, dict):
            raise ValueError(f"ground_truth={shown(truth)} must be {{target, numbers}}")
        stated.append({name: truth.get(name) for name in columns})
    if not stated:
        raise ValueError(
            "it has neither nums (or numbers) and target nor reward_model.ground_truth: add them"
        )
    try:
        puzzle, *others = map(_Puzzle.model_validate, stated)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{where}={shown(first['input'])}: {first['msg']} (the solver takes 2 to 6 numbers "
            "from 1 to 999): correct the row, or leave it out"
        ) from None
    if others and others != [puzzle]:
        raise ValueError(
            f"nums={puzzle.numbers} and target={puzzle.target} are not those of "
            f"reward_model.ground_truth ({shown(truth)}): correct one of them"
        )
    return puzzle.numbers, puzzle.target
