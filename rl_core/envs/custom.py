"""Custom: a user's own rows, any question and any truth, scored by `env.reward` or word for word.

A row is `{question, answer}`, `{prompt, ...}` or as verl writes it.
"""

import json
from typing import Any, ClassVar, Literal

from pydantic import Field

from rl_core.envs.rows import (
    ANSWER_IN_TAGS,
    Record,
    Row,
    prompt_key,
    shown,
    struct_of,
    text_of,
    text_of_truth,
)
from rl_core.envs.text_env import (
    TEXT_CHECKS,
    Checks,
    ImportFrom,
    Rows,
    TextEnv,
    prompt_in,
    score_words,
)
from rl_core.types import Message, ScoredText


def _read_row(env: TextEnv, record: Record) -> Row:
    """Returns the problem of one row."""
    extra = struct_of(record, "extra_info")
    truth = _truth(record)
    prompt = _prompt(env, record)
    return Row(
        prompt_key(prompt),
        prompt,
        truth,
        text_of(record, {}, "data_source") or env.name,
        solution=str(extra.get("solution") or text_of_truth(truth)),
        extra_info=json.dumps(extra, ensure_ascii=False, default=str) if extra else "",
    )


def _prompt(env: TextEnv, record: Record) -> list[Message]:
    """Returns what is asked; a prompt of the row's own is kept as it is."""
    given = record.get("prompt")
    if isinstance(given, str):
        record = record | {"prompt": [Message(role="user", content=given)]}
    prompt = prompt_in(env, record, text_of(record, {}, "question") if given is None else None)
    if not any(message["content"].strip() for message in prompt):
        raise ValueError(f"prompt={shown(given)} asks nothing: write what is asked")
    if env.prompt_template == "base" and [message["role"] for message in prompt] != ["user"]:
        raise ValueError(
            f"prompt={shown(given)} is a conversation, and env.prompt_template=base is for one "
            "text: use env.prompt_template=chat"
        )
    return prompt


def _truth(record: Record) -> Any:
    """Returns the first truth that a row has: any JSON value except null and blank text."""
    places = {
        "reward_model.ground_truth": struct_of(record, "reward_model").get("ground_truth"),
        "ground_truth": record.get("ground_truth"),
        "answer": record.get("answer"),
    }
    truths = {name: value for name, value in places.items() if value is not None}
    not_blank = (v for v in truths.values() if not isinstance(v, str) or v.strip())
    truth = next(not_blank, None)
    if truths and truth is None:
        name, value = next(iter(truths.items()))
        raise ValueError(f"{name}={value!r} is blank: write what is right, or leave the row out")
    if truth is None:
        raise ValueError(
            "it has none of `answer`, `ground_truth` and reward_model.ground_truth: add one "
            "(any text, if env.reward takes none)"
        )
    try:
        json.dumps(truth, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(
            f"its ground truth {shown(truth)} is no value of JSON: write it as a text"
        ) from None
    return truth


class Custom(TextEnv):
    """Questions and answers of `data.train_files`, scored by `env.reward` or word for word."""

    name: Literal["custom"] = "custom"
    """Chosen by `env=custom`."""
    prompt_template: Literal["chat", "base"] = "chat"
    """Text around a `question` that asks for answer tags. `chat`: with the tokenizer's chat tags;
    `base`: plain. A row's own `prompt` gets no such text: only chat tags, with `chat`."""
    answer_from: Literal["last_line", "anywhere"] = "anywhere"
    """Where answer tags may be, if answers are compared word for word."""
    format_score: float = Field(0.0, ge=0, le=1)
    """Score of an answer in tags that is not correct, if `env.reward` names no function."""

    templates: ClassVar = ANSWER_IN_TAGS
    rows: ClassVar = Rows(
        read=_read_row, columns=("question", "answer", "ground_truth", "data_source")
    )
    checks: ClassVar = Checks(
        specific=("custom_ground_truth.sql",),
        shared=(*TEXT_CHECKS, "text_prompt.sql"),
        parameters=lambda env: {"has_reward": bool(env.reward)},  # which may take any truth
        answer_mark="<answer>",
    )
    import_from: ClassVar = ImportFrom(
        remedy="data.train_files=FILE names rows of yours",
        has_truth=lambda truth: truth is not None,
    )

    def score(self, response: str, truth: Any) -> ScoredText:
        """Compares the answer in tags word for word."""
        return score_words(self, response, text_of_truth(truth))
