"""Rows of a data set: what a prompt says, how a user's row is read, how all rows are written.

Data path stages 1 and 4. A user's row has the columns of its env, or of verl and TinyZero
(`prompt`, `reward_model`), or our own; its own prompt is kept as it is. A truth that is a text is
stored as it is, any other value as JSON with `style` `JSON_STYLE`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from rl_core.types import OWN_EXTRA_INFO, Message

if TYPE_CHECKING:
    import pyarrow as pa

Record: TypeAlias = dict[str, Any]
"""A row as it is read, by column."""

COLUMNS: Final = ("prompt", "reward_model", "extra_info")
"""What any env's rows may have, in addition to its own columns."""
JSON_STYLE: Final = "json"
OPEN_TAG = "<answer>"
CLOSE_TAG = "</answer>"
_SHOWN_CHARACTERS: Final = 80
LEAD_IN: Final = "Let me solve this step by step.\n<think>"


def in_conversation(question: str) -> str:
    """Returns a prompt for a model without chat tags, in TinyZero's words."""
    return (
        "A conversation between User and Assistant. The user asks a question, and the Assistant "
        "solves it. The assistant first thinks about the reasoning process in the mind and then "
        f"provides the user with the answer.\nUser: {question}\nAssistant: {LEAD_IN}"
    )


_QUESTION: Final = (
    "{question}\nShow your work in <think> </think> tags. And return the final answer in <answer> "
    "</answer> tags."
)
ANSWER_IN_TAGS: Final = {"chat": _QUESTION, "base": in_conversation(_QUESTION)}
"""Templates that ask for answer tags; `base` is a whole prompt, tokenized raw."""


@dataclass(frozen=True, slots=True)
class Row:
    """A problem, read and checked, or made here."""

    key: tuple[Any, ...]
    """Rows with equal keys are one problem: (sorted numbers, target), or the prompt's texts."""
    prompt: list[Message]
    truth: Any
    """In the env's own shape."""
    data_source: str
    solution: str = ""
    num_solutions: int = 0
    extra_info: str = ""
    """`extra_info` of a user's row, as JSON, for `env.reward`; empty if it has none."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """The env's own columns, by name."""


def text_columns() -> pa.Schema:
    """Returns the columns of a data set whose truths are texts, or JSON."""
    from rl_core.schema import dataset_schema

    return dataset_schema()


def tables_of(rows: Mapping[str, Sequence[Row]], schema: pa.Schema) -> dict[str, pa.Table]:
    """Returns the rows of each split as an Arrow table."""
    return {split: _table(schema, split, part) for split, part in rows.items()}


def _table(schema: pa.Schema, split: str, rows: Sequence[Row]) -> pa.Table:
    import pyarrow as pa

    extra = schema.field("extra_info").type
    if any(row.extra_info for row in rows):
        extra = pa.struct([*extra, (OWN_EXTRA_INFO, pa.string())])
        place = schema.get_field_index("extra_info")
        schema = schema.set(place, schema.field(place).with_type(extra))
    is_text = schema.field("reward_model").type.field("ground_truth").type == pa.string()
    records = [
        {
            **row.columns,
            "data_source": row.data_source,
            "prompt": row.prompt,
            "ability": "math",
            "reward_model": {
                "style": JSON_STYLE if is_text and not isinstance(row.truth, str) else "rule",
                "ground_truth": text_of_truth(row.truth) if is_text else row.truth,
            },
            "extra_info": {
                "split": split,
                "index": index,
                "num_solutions": row.num_solutions,
                "solution": row.solution,
                OWN_EXTRA_INFO: row.extra_info,
            },
        }
        for index, row in enumerate(rows)
    ]
    return pa.Table.from_pylist(records, schema=schema)


def own_prompt(record: Record) -> list[Message] | None:
    """Returns the prompt that a row has; raises ValueError if it is no list of messages."""
    prompt = record.get("prompt")
    if prompt is None:
        return None
    if not isinstance(prompt, list) or not prompt or not all(map(_is_message, prompt)):
        raise ValueError(
            f"prompt={shown(prompt)} must be a list of {{role, content}}, both texts, as verl's"
        )
    return [Message(role=message["role"], content=message["content"]) for message in prompt]


def struct_of(record: Record, name: str) -> Record:
    """Returns a struct of a row, empty if absent; raises ValueError if it is none."""
    part = record.get(name)
    if part is not None and not isinstance(part, dict):
        raise ValueError(f"{name}={shown(part)} must be an object with named fields")
    return part or {}


def text_of(record: Record, extra: Record, name: str) -> str | None:
    """Returns a text of a row, or else of its `extra_info`; raises ValueError if it is none."""
    value = record.get(name) if record.get(name) is not None else extra.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name}={shown(value)} must be a text")
    return value


def shown(value: Any) -> str:
    """Returns a value as a message shows it, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )


def question_in(content: str) -> str:
    """Returns what a prompt asks, without the words of the template that wrote it."""
    for template in ANSWER_IN_TAGS.values():
        before, _, after = template.partition("{question}")
        if content.startswith(before) and content.endswith(after):
            return content.removeprefix(before).removesuffix(after)
    return content


def prompt_key(prompt: Sequence[Message]) -> tuple[str, ...]:
    """Returns a prompt's texts with single spaces: equal for prompts that ask the same."""
    return tuple(" ".join(message["content"].split()) for message in prompt)


def text_of_truth(truth: Any) -> str:
    """Returns a truth as a text: a number or an object as JSON."""
    return truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)


def shown_truth(truth: Any) -> str:
    """Returns a truth as a person reads it: only the answer if it has `question` and `answer`."""
    if isinstance(truth, Mapping) and truth.keys() >= {"question", "answer"}:
        truth = truth["answer"]
    return text_of_truth(truth)


def find_answer(response: str, answer_from: str) -> str:
    """Returns the text between the last closing tag and the nearest opening one before it.

    Empty if there is none; linear in the response's length. Unless `answer_from` is `anywhere`,
    only tags on the response's last line are read, as TinyZero does.
    """
    start = 0 if answer_from == "anywhere" else response.rfind("\n") + 1
    close = response.rfind(CLOSE_TAG, start)
    opening = response.rfind(OPEN_TAG, start, close) if close >= 0 else -1
    return "" if opening < 0 else response[opening + len(OPEN_TAG) : close]


_SET_BY_US: Final = frozenset(
    (
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "strftime_now",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    )
)
"""What transformers' `apply_chat_template` takes itself, or a template gets from it."""


def mistakes_in_chat_args(chat_args: Mapping[str, Any], template: str) -> Iterator[str]:
    """Yields what is wrong: no template is used, or an argument is not the user's or not JSON."""
    if chat_args and template != "chat":
        yield (
            f"env.chat_args={chat_args} is for a chat template, which "
            f"env.prompt_template={template} does not use: leave it out"
        )
    if taken := sorted(chat_args.keys() & _SET_BY_US):
        yield (
            f"env.chat_args.{taken[0]} is set by this program: leave it out (what a template "
            "reads stands in the model's chat_template)"
        )
    try:
        json.dumps(chat_args, allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"env.chat_args must hold JSON values ({error})"
