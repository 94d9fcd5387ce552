"""GSM8K rows of a user's file: `{question, answer}`, or rows of verl (data path stage 1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, get_args

from rl_core.envs.gsm8k.prompts import DATA_SOURCE, Template, render_messages
from rl_core.envs.gsm8k.scoring import extract_truth, score_response
from rl_core.envs.gsm8k.settings import Gsm8kConfig
from rl_core.envs.user_rows import (
    OwnProblem,
    Record,
    choose_prompt,
    columns_of,
    own_prompt,
    shown,
    struct_of,
    text_of,
)
from rl_core.types import Message

_NUMBER: Final = re.compile(r"\s*\$?[-+]?[\d,]*\.?\d+\s*")


def read_row(env: Gsm8kConfig, record: Record) -> OwnProblem:
    """Returns the word problem of one row.

    Raises:
        ValueError: something is missing or of a wrong type; the message names the value and a
            remedy.
    """
    extra = struct_of(record, "extra_info")
    question = text_of(record, extra, "question")
    answer = text_of(_as_texts(record, "answer"), _as_texts(extra, "answer"), "answer")
    answer = answer or text_of(extra, {}, "solution")
    if answer is not None and _NUMBER.fullmatch(answer):
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
    prompt = own_prompt(record)
    if question is None and prompt is None:
        raise ValueError("it has neither `question` nor `prompt`: add one")
    prompt, template = choose_prompt(
        prompt,
        (env.prompt_template, *get_args(Template)),
        lambda template: render_messages(template, question or _framed(template, prompt)),
    )
    return OwnProblem(
        key=tuple(message["content"] for message in prompt),
        prompt=prompt,
        template=template,
        truth=number,
        solution=answer,
    )


def _as_texts(record: Record, name: str) -> Record:
    """Returns a row with a number of that name as text: 4 and 4.0 are `4`."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return record
    is_whole = isinstance(value, float) and value.is_integer()
    return record | {name: str(int(value) if is_whole else value)}


def read_source_row(record: Record) -> tuple[str, str]:
    """Returns the question and the answer of a row of `env.source`.

    Raises:
        ValueError: it lacks one of the two as text.
    """
    question, answer = record.get("question"), record.get("answer")
    if not (isinstance(question, str) and isinstance(answer, str)):
        raise ValueError("lacks `question` or `answer` as text")
    return question, answer


def user_table(split: str, problems: Sequence[OwnProblem]) -> Any:
    """Returns the rows of one split as an Arrow table, with the schema `GSM8K_DATASET`."""
    import pyarrow as pa

    from rl_core.envs.gsm8k.table import GSM8K_DATASET

    return pa.Table.from_pydict(columns_of(DATA_SOURCE, split, problems), schema=GSM8K_DATASET)


def _framed(template: Template, prompt: list[Message] | None) -> str:
    """Returns what stands in a prompt where the template has the question; the rest may differ."""
    before, after = render_messages(template, "\0")[0]["content"].split("\0")
    content = prompt[0]["content"] if prompt else ""
    return content[len(before) : len(content) - len(after)]
