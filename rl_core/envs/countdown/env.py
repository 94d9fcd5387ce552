"""Countdown: combine all the numbers, each once, with + - * / to make the target."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from rl_core.envs.countdown.rows import (
    DATA_SOURCE,
    Template,
    message_templates,
    render_messages,
    render_prompt,
    stated_puzzle,
)
from rl_core.envs.countdown.scoring import CALL_CLOSE, answer_call, score_response
from rl_core.envs.countdown.traces import FEWEST, MOST
from rl_core.envs.rows import Record, Row, choose_prompt, own_prompt
from rl_core.envs.sft_examples import SftExamples
from rl_core.envs.text_env import EnvTurn, Question, Solved, TextEnv
from rl_core.types import Message, Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

_FEWEST_NUMBERS: Final = 2
_MOST_DIGITS: Final = 18
"""Of a number of a person's puzzle: what fits a column of whole numbers."""
_PUZZLE: Final = re.compile(r"[\s\d,;\[\](){}=:>→-]*")


class CountdownConfig(TextEnv):
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
    answer_from: Literal["anywhere", "last_line"] = "anywhere"
    """Where the answer may stand: `anywhere`, or on the `last_line`, as TinyZero has it."""
    format_score: float = Field(0.1, ge=0, le=1)
    """Score of a response with an answer that is not correct."""

    shared_checks: ClassVar = ("countdown_columns.sql", "labels.sql", "row_count.sql")
    checks: ClassVar = (
        *("countdown_difficulty.sql", "countdown_ground_truth.sql", "countdown_no_nulls.sql"),
        *("countdown_number_range.sql", "countdown_operand_count.sql", "countdown_prompt.sql"),
        *("countdown_solution.sql", "countdown_splits_disjoint.sql"),
        *("countdown_target_range.sql", "countdown_unique.sql"),
    )
    checks_of_generator: ClassVar = (
        *("countdown_number_range", "countdown_operand_count", "row_count"),
        "countdown_target_range",
    )
    checks_of_template: ClassVar = ("countdown_prompt",)
    stop: ClassVar = (CALL_CLOSE,)
    readings: ClassVar = ("last_line", "anywhere")
    answer_mark: ClassVar = "<answer>"
    own_columns: ClassVar = ("nums", "numbers", "target")
    home_made: ClassVar = (
        f"Countdown with {FEWEST} or {MOST} numbers",
        f"env=countdown env.min_operands={FEWEST} env.max_operands={MOST}",
    )
    traces_give_up: ClassVar = True
    weak_models: ClassVar = ("0.5b",)
    script_words: ClassVar = ("countdown", "tinyzero")
    script_remedy: ClassVar = "the run makes puzzles of its own; data.train_files=FILE names yours"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for what in ("operands", "number", "target"):
            low, high = getattr(self, f"min_{what}"), getattr(self, f"max_{what}")
            if low > high:
                raise ValueError(f"env.min_{what}={low} is above env.max_{what}={high}: swap them")
        return self

    def score(self, response: str, truth: Mapping[str, Any]) -> ScoredText:
        """Reads and evaluates the expression that a response gives."""
        scored = score_response(
            response,
            truth["numbers"],
            truth["target"],
            answer_from=self.answer_from,
            format_score=self.format_score,
            full_score=self.full_score,
        )
        value = None if scored.value is None else str(scored.value)
        return ScoredText(scored.score, scored.verdict, scored.answer, value)

    def reply(self, response: str, truth: Any) -> EnvTurn | None:
        """Answers a call of the calculator."""
        said = answer_call(response)
        return None if said is None else EnvTurn(said)

    @staticmethod
    def difficulty_of(truth: Any, solution: str) -> str:
        """Returns how many numbers there are, and the operators of a solution in no order."""
        return f"{len(truth['numbers'])} {''.join(sorted(c for c in solution if c in '+-*/'))}"

    def make_splits(self, *, train_size: int, test_size: int, seed: int) -> dict[str, pa.Table]:
        """Returns both splits, cut from one draw of puzzles."""
        from rl_core.envs.countdown.puzzles import generate_puzzles
        from rl_core.envs.countdown.tables import countdown_table

        puzzles = generate_puzzles(self, size=train_size + test_size, seed=seed)
        parts = {"train": puzzles[test_size:], "test": puzzles[:test_size]}
        return {
            split: countdown_table(part, split=split, template=self.prompt_template)
            for split, part in parts.items()
        }

    def read_row(self, record: Record) -> Row:
        """Returns a puzzle, not yet solved: `{nums, target}`, or a row of verl or TinyZero."""
        numbers, target = stated_puzzle(record)
        prompt, template = choose_prompt(
            own_prompt(record),
            (self.prompt_template, *get_args(Template)),
            lambda template: render_messages(template, numbers, target),
        )
        return Row(
            (tuple(sorted(numbers)), target),
            prompt,
            template,
            {"target": target, "numbers": numbers},
            DATA_SOURCE,
            own={"nums": numbers, "target": target},
        )

    @staticmethod
    def with_solutions(rows: Sequence[Row]) -> list[Row | None]:
        """Returns each puzzle with a solution and how many there are; None if there is none."""
        from rl_core.envs.countdown.solver import solve_many

        numbers, targets = [row.key[0] for row in rows], [row.key[1] for row in rows]
        return [
            None if solution is None else replace(row, solution=solution, num_solutions=count)
            for row, (solution, count) in zip(rows, solve_many(numbers, targets), strict=True)
        ]

    @staticmethod
    def arrow_schema() -> pa.Schema:
        """Returns the columns: verl's, and the numbers and the target for themselves."""
        from rl_core.envs.countdown.tables import COUNTDOWN_DATASET

        return COUNTDOWN_DATASET

    def check_parameters(self, *, train_size: int, test_size: int) -> dict[str, Any]:
        """Returns the ranges of the settings, and the words of the template around a puzzle."""
        ends = {
            f"{end}_{what}" for end in ("min", "max") for what in ("operands", "number", "target")
        }
        *system, question = message_templates(self.prompt_template)
        before, _, rest = question["content"].partition("{numbers}")
        between, _, after = rest.partition("{target}")
        return {
            **self.model_dump(include=ends),
            "data_source": DATA_SOURCE,
            "train_size": train_size,
            "test_size": test_size,
            "system": system[0]["content"] if system else "none",
            "before": before,
            "between": between,
            "after": after,
        }

    @staticmethod
    def check_tables(
        splits: Mapping[str, pa.Table],
    ) -> tuple[dict[str, pa.Table], dict[str, str]]:
        """Returns solutions as the reward judges them, and counted again: SQL cannot."""
        from rl_core.envs.countdown.tables import recounts_table, solutions_table

        solutions = solutions_table(splits)
        recounts = recounts_table(solutions)
        counted = f" (a sample: {recounts.num_rows:,} of {solutions.num_rows:,} problems)"
        return {"solutions": solutions, "recounts": recounts}, {"countdown_difficulty": counted}

    def prompt_of_numbers(self, numbers: Sequence[int], target: int) -> list[Message]:
        """Returns the prompt of a puzzle."""
        return render_messages(self.prompt_template, numbers, target)

    def read_question(self, text: str, answer: str | None) -> Question:
        """Reads numbers and, last, the target: `3 14 7 = 35`."""
        words = re.findall(r"\d+", text)
        longest = max((word for word in words if len(word) > _MOST_DIGITS), default="", key=len)
        if longest:
            raise ValueError(f"{longest[:20]}... has {len(longest)} digits: at most {_MOST_DIGITS}")
        numbers = [int(word) for word in words]
        if not _PUZZLE.fullmatch(text) or len(numbers) <= _FEWEST_NUMBERS:
            raise ValueError(
                f"{text!r} is no puzzle: write numbers and, last, the target, as '3 14 7 = 35' "
                "(env=gsm8k takes word problems)"
            )
        if answer is not None:
            raise ValueError("a puzzle's answer is found by its rule: answer= is for env=gsm8k")
        *numbers, target = numbers
        messages = render_messages(self.prompt_template, numbers, target)
        truth = {"numbers": numbers, "target": target}
        problem = Problem(0, DATA_SOURCE, tuple(messages), truth, 0)
        return Question(self.show_problem(problem), problem, is_scored=True)

    def show_problem(self, problem: Problem) -> str:
        """Returns the numbers and the target."""
        numbers, target = _numbers_and_target(problem)
        return f"{', '.join(map(str, numbers))} = {target}"

    @property
    def is_taught(self) -> bool:
        """Whether search traces are defined for so many numbers."""
        return self.min_operands >= FEWEST and self.max_operands <= MOST

    def home_made_examples(
        self, *, give_up_prob: float, train: Solved, test: Solved
    ) -> SftExamples:
        """Returns search traces."""
        from rl_core.envs.countdown.sft_examples import SearchExamples

        return SearchExamples(
            give_up_prob,
            prompts=[problem.messages[0]["content"] for problem, _ in train],
            problems=[_numbers_and_target(problem) for problem, _ in train],
            holdout=[_numbers_and_target(problem) for problem, _ in test],
            render_prompt=partial(render_prompt, self.prompt_template),
            calls=self.max_turns > 1,
        )

    def write_trace(
        self, problem: Problem, solution: str, rng: random.Random, give_up_prob: float
    ) -> str:
        """Returns a search in words."""
        from rl_core.envs.countdown.traces import write_worded_trace

        numbers, target = _numbers_and_target(problem)
        trace = write_worded_trace(numbers, target, solution, rng=rng, give_up_prob=give_up_prob)
        return f"<think>{trace}" if self.prompt_template == "chat" else trace

    @staticmethod
    def has_columns(row: Record) -> bool:
        """Says whether there are numbers."""
        return bool(row.get("nums"))

    @staticmethod
    def has_truth(truth: Any) -> bool:
        """Says whether there are numbers and a target."""
        return isinstance(truth, dict) and {"target", "numbers"} <= {*truth}

    @staticmethod
    def imported_settings(row: Record, model: str) -> dict[str, Any]:
        """Returns how prompts reach the model: raw as TinyZero's, else by a chat template."""
        prompt = row.get("prompt")
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict):
            text = str(prompt[0].get("content"))
            if text.startswith("<|im_start|>"):
                return {"env.prompt_template": "qwen-instruct"}
            is_raw = len(prompt) == 1 and re.search(r"(^|\n)Assistant:", text)
            return {} if is_raw else {"env.prompt_template": "chat"}
        return {"env.prompt_template": "qwen-instruct"} if "instruct" in model else {}


def _numbers_and_target(problem: Problem) -> tuple[tuple[int, ...], int]:
    truth: Any = problem.ground_truth
    return tuple(truth["numbers"]), truth["target"]
