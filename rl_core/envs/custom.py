"""Custom: a user's own rows, any question and any truth, scored by `env.reward` or word for word.

A row is `{question, answer}`, `{prompt, ...}` or as verl writes it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from rl_core.envs.record import Checks, Env, LaunchScripts, Question, Value
from rl_core.envs.settings import EnvSettings
from rl_core.envs.text_problems import (
    CHECKS,
    prompt_key,
    question_in,
    render_messages,
    score_text,
    text_of_truth,
    text_table,
)
from rl_core.envs.user_rows import OwnProblem, Record, own_prompt, shown, struct_of, text_of
from rl_core.types import Message, Problem, ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

DATA_SOURCE: Final = "custom"
COLUMNS: Final = ("question", "answer", "ground_truth", "data_source")


class CustomConfig(EnvSettings):
    """Questions and answers of `data.train_files`, scored by `env.reward` or word for word."""

    name: Literal["custom"] = "custom"
    """Chosen by `env=custom`."""
    prompt_template: Literal["chat", "base"] = "chat"
    """Around a `question`, which asks for answer tags; `chat`: the tokenizer's own tags; `base`:
    a plain text. A row's own `prompt` stays as it is: tagged with `chat`, raw with `base`."""
    answer_from: Literal["anywhere", "last_line"] = "anywhere"
    """Where answer tags may stand, for the comparison word for word."""
    format_score: float = Field(0.0, ge=0, le=1)
    """Score of an answer in tags that is not the truth, where `env.reward` names no function."""


def read_row(env: CustomConfig, record: Record) -> OwnProblem:
    """Returns the problem of one row.

    Raises:
        ValueError: something is missing or of a wrong type; the message names the value and a
            remedy.
    """
    extra = struct_of(record, "extra_info")
    truth = _truth(record)
    prompt = _prompt(env, record)
    data_source = text_of(record, {}, "data_source")
    return OwnProblem(
        key=prompt_key(prompt),
        prompt=prompt,
        template=env.prompt_template,
        truth=truth,
        solution=text_of(extra, {}, "solution") or text_of_truth(truth),
        data_source=data_source or DATA_SOURCE,
        extra_info=json.dumps(extra, ensure_ascii=False, default=str) if extra else "",
    )


def user_table(split: str, problems: Sequence[OwnProblem]) -> pa.Table:
    """Returns the rows of one split as an Arrow table."""
    return text_table(split, problems, [problem.data_source for problem in problems])


def _truth(record: Record) -> Any:
    """Returns the first truth that a row has, any value of JSON but null and a blank text."""
    found = {
        "reward_model.ground_truth": struct_of(record, "reward_model").get("ground_truth"),
        "ground_truth": record.get("ground_truth"),
        "answer": record.get("answer"),
    }
    given = {name: value for name, value in found.items() if value is not None}
    truth = next((value for value in given.values() if not _is_blank(value)), None)
    if given and truth is None:
        name, value = next(iter(given.items()))
        raise ValueError(f"{name}={value!r} is blank: write what is right, or leave the row out")
    if truth is None:
        raise ValueError(
            "it has none of `answer`, `ground_truth` and reward_model.ground_truth: add one"
        )
    try:
        json.dumps(truth, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"its ground truth {shown(truth)} is no value of JSON: write it as a text"
        ) from None
    return truth


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _prompt(env: CustomConfig, record: Record) -> list[Message]:
    """Returns what is asked; a prompt of the row's own is kept as it is."""
    if (own := record.get("prompt")) is None:
        question = text_of(record, {}, "question")
        if not (question or "").strip():
            raise ValueError("it has neither `question` nor `prompt`: add one")
        return render_messages(env.prompt_template, question or "")
    prompt = [Message(role="user", content=own)] if isinstance(own, str) else own_prompt(record)
    assert prompt is not None, "there is one"
    if not any(message["content"].strip() for message in prompt):
        raise ValueError(f"prompt={shown(own)} asks nothing: write what is asked")
    if env.prompt_template == "base" and [message["role"] for message in prompt] != ["user"]:
        raise ValueError(
            f"prompt={shown(own)} is a conversation, and env.prompt_template=base is for one text: "
            "use env.prompt_template=chat"
        )
    return prompt


def _score(env: CustomConfig, response: str, truth: Any) -> ScoredText:
    return score_text(
        response,
        text_of_truth(truth),
        answer_from=env.answer_from,
        format_score=env.format_score,
        full_score=env.full_score,
    )


def _check_parameters(env: CustomConfig, /, *, train_size: int, test_size: int) -> dict[str, Value]:
    return {"has_reward": env.reward is not None}


def _read_question(env: CustomConfig, text: str, answer: str | None) -> Question:
    asked = tuple(render_messages(env.prompt_template, text))
    problem = Problem(0, DATA_SOURCE, asked, answer or "", 0)
    return Question(text, problem, is_scored=answer is not None)


def _show(problem: Problem) -> str:
    truth = text_of_truth(problem.ground_truth)
    return f"{question_in(problem.messages[-1]['content'])} (the answer is {truth})"


CUSTOM: Final = Env(
    settings=CustomConfig,
    title="your own rows",
    data_source=DATA_SOURCE,
    answer_from=("last_line", "anywhere"),
    score=_score,
    generate=None,
    own_columns=COLUMNS,
    read_row=read_row,
    user_table=user_table,
    checks=Checks(
        columns="text_columns.sql",
        rows=(*CHECKS, "custom_ground_truth.sql"),
        parameters=_check_parameters,
    ),
    read_question=_read_question,
    show=_show,
    launch_scripts=LaunchScripts(
        words=(),
        has_columns=lambda row: False,
        has_truth=lambda truth: truth is not None,
        made="data.train_files=FILE names rows of yours",
    ),
)
