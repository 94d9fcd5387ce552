"""GSM8K: grade-school word problems with a number as the answer, from a data set or generated here.

Prompts are byte for byte those of the field's data, so that models and logs compare. `numbers.py`
reads truths and answers alike.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from pydantic import Field

from rl_core.envs.numbers import extract_truth, number_of, score_response
from rl_core.envs.rows import (
    Record,
    Row,
    in_conversation,
    prompt_key,
    shown,
    struct_of,
    tables_of,
    text_columns,
    text_of,
)
from rl_core.envs.text_env import (
    TEXT_CHECKS,
    Checks,
    ImportFrom,
    Question,
    Rows,
    Sft,
    TextEnv,
    prompt_in,
)
from rl_core.envs.word_problems import SolutionExamples, generate_word_problems
from rl_core.types import Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

DATA_SOURCE: Final = "openai/gsm8k"
_TOY_SOURCE: Final = "toy"
_THINKS: Final = "env.prompt_template=think"

_TEXTS: Final = {
    "chat": '{question} Let\'s think step by step and output the final answer after "####".',
    "think": in_conversation(
        "{question} Show your work in <think> </think> tags. And write the final answer as a "
        "number after ####, for example #### 18."
    ),
}


def _has_truth(truth: Any) -> bool:
    """Returns whether a truth is a number as text that can be compared."""
    number = number_of(truth) if isinstance(truth, str) else None
    return number is not None and number.value is not None


def _solution_trace(
    env: Any, problem: Problem, solution: str, rng: random.Random, give_up_prob: float
) -> str:
    """Returns the data set's own solution, whole and without calculator annotations."""
    steps, end, _ = re.sub(r"<<[^>]*>>", "", solution).rpartition("\n")
    answer = f"#### {extract_truth(solution)}"
    if env.prompt_template == "think":
        return f"\n{steps}</think>\n{answer}"
    return f"{steps}{end}{answer}"


def _read_row(env: TextEnv, record: Record) -> Row:
    """Returns the word problem of one row: `{question, answer}`, or as verl writes it."""
    extra = struct_of(record, "extra_info")
    question = text_of(record, extra, "question")
    answer = text_of(_as_texts(record, "answer"), _as_texts(extra, "answer"), "answer")
    answer = answer or text_of(extra, {}, "solution")
    if answer is not None and number_of(answer) is not None:
        answer = f"#### {answer.strip()}"  # a plain number, as many files have it
    truth = _as_texts(struct_of(record, "reward_model"), "ground_truth").get("ground_truth")
    if truth is not None and not isinstance(truth, str):
        raise ValueError(f"ground_truth={shown(truth)} must be a number as text, such as '18'")
    if truth is None and answer is None:
        raise ValueError("it has neither `answer` nor reward_model.ground_truth: add one")
    answer = answer or f"#### {truth}"
    number = extract_truth(answer)
    if truth is not None and score_response(f"#### {truth}", number).verdict != "correct":
        raise ValueError(f"ground_truth={shown(truth)} is not its answer's number {number}")
    prompt = prompt_in(env, record, question)
    return Row(prompt_key(prompt), prompt, number, DATA_SOURCE, answer.rstrip())


def _as_texts(record: Record, name: str) -> Record:
    """Returns the row with its number of that name as text: 4 and 4.0 become `4`."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return record
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    return record | {name: str(whole)}


def _make_toy_rows(
    env: TextEnv, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    problems = generate_word_problems(size=train_size + test_size, seed=seed)
    rows = [_read_row(env, row) for row in problems]
    return tables_of({"train": rows[test_size:], "test": rows[:test_size]}, text_columns())


def _check_parameters(env: TextEnv) -> dict[str, Any]:
    """Returns the words of the template around a question."""
    before, _, after = env.templates[env.prompt_template].partition("{question}")
    return {"data_source": DATA_SOURCE, "before": before, "after": after}


class Gsm8k(TextEnv):
    """The GSM8K problem family: grade-school word problems with a numeric answer."""

    name: Literal["gsm8k"] = "gsm8k"
    """Chosen by `env=gsm8k`."""
    source: str = "openai/gsm8k"
    """A Hugging Face data set (config `main`), or `toy`: word problems of one to three steps in
    GSM8K's form, generated here. `data.train_files` names the files of a copy."""
    prompt_template: Literal["chat", "think"] = "chat"  # type: ignore[assignment]  # another choice of texts
    """`chat`: the tokenizer's own tags; `think`: a plain text that ends with <think>."""
    answer_from: Literal["strict", "lenient"] = "strict"
    """`strict`: the last `#### x`; `lenient`: the last number."""
    format_score: float = Field(0.0, ge=0, le=1)
    """Score of a response with a number that is not correct."""

    templates: ClassVar = _TEXTS
    rows: ClassVar = Rows(
        make=_make_toy_rows,
        source=lambda env: None if env.source == _TOY_SOURCE else env.source,
        source_size=7_473,
        columns=("question", "answer"),
        read=_read_row,
    )
    checks: ClassVar = Checks(
        specific=("gsm8k_ground_truth.sql", "gsm8k_prompt.sql"),
        shared=(*TEXT_CHECKS, "labels.sql"),
        of_template=("gsm8k_prompt",),
        parameters=_check_parameters,
        answer_mark="####",
    )
    sft: ClassVar = Sft(
        "toy word problems",
        f"env=gsm8k env.source={_TOY_SOURCE} {_THINKS}",
        lambda env: bool(env.source == _TOY_SOURCE),
        SolutionExamples,
        lambda problem, solution: solution,
        _solution_trace,
    )
    import_from: ClassVar = ImportFrom(
        ("gsm8k",),
        "the run fetches openai/gsm8k; data.train_files=FILE names those of a copy",
        _has_truth,
    )

    def score(self, response: str, truth: str) -> ScoredText:
        """Compares the number that a response gives."""
        return score_response(
            response,
            truth,
            answer_from=self.answer_from,
            format_score=self.format_score,
            full_score=self.full_score,
        )

    @staticmethod
    def difficulty_of(truth: Any, solution: str) -> str:
        """Returns the number of a solution's lines."""
        return f"{solution.count(chr(10))} steps"

    def read_question(self, text: str, answer: str | None) -> Question:
        """Returns a word problem in the words of the template."""
        known = "0" if answer is None else extract_truth(f"#### {answer}")
        return Question(
            text,
            Problem(0, DATA_SOURCE, tuple(self.prompt(text)), known, 0),
            is_scored=answer is not None,
        )
