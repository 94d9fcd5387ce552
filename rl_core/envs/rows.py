"""Rows of a data set: how a user's row is read, and how the rows of all envs are written (stage 1).

A user's row has the columns of its env, or of verl and TinyZero (`prompt`, `reward_model`), or our
own. Its own prompt is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rl_core.envs.text_problems import JSON_STYLE, text_of_truth
from rl_core.types import OWN_EXTRA_INFO, Message

if TYPE_CHECKING:
    import pyarrow as pa

Record = dict[str, Any]
"""A row as it is read, by column."""

COLUMNS = ("prompt", "reward_model", "extra_info")
"""What any env's rows may have, in addition to its own columns."""
UNKNOWN_TEMPLATE = "unknown"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class Row:
    """A problem, read and checked, or made here."""

    key: tuple[Any, ...]
    """Rows with equal keys are one problem: (sorted numbers, target), or the prompt's texts."""
    prompt: list[Message]
    template: str
    """Which template of the env writes this prompt; `UNKNOWN_TEMPLATE` if none does."""
    truth: Any
    """In the env's own shape."""
    data_source: str
    solution: str = ""
    num_solutions: int = 0
    extra_info: str = ""
    """That of a user's row, as JSON, for `env.reward`; empty if it has none."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The env's own columns, by name."""


def table_of_rows(schema: pa.Schema, split: str, rows: Sequence[Row]) -> pa.Table:
    """Returns the rows of one split as an Arrow table."""
    import pyarrow as pa

    extra = schema.field("extra_info").type
    if any(row.extra_info for row in rows):
        extra = pa.struct([*extra, (OWN_EXTRA_INFO, pa.string())])
        place = schema.get_field_index("extra_info")
        schema = schema.set(place, schema.field(place).with_type(extra))
    truths = [row.truth for row in rows]
    styles = ["rule"] * len(rows)
    if schema.field("reward_model").type.field("ground_truth").type == pa.string():
        styles = ["rule" if isinstance(truth, str) else JSON_STYLE for truth in truths]
        truths = [text_of_truth(truth) for truth in truths]
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows]
        for name in ("data_source", "prompt", "num_solutions", "solution")
    }
    columns |= {name: [row.own[name] for row in rows] for name in (rows[0].own if rows else ())}
    columns |= {"style": styles, "ground_truth": truths}
    columns |= {OWN_EXTRA_INFO: [row.extra_info for row in rows]}
    return table_of_columns(schema, split, columns)


def table_of_columns(
    schema: pa.Schema, split: str, columns: Mapping[str, Any], *, start: int = 0
) -> pa.Table:
    """Returns one split as an Arrow table: the one writer of rows.

    Args:
        schema: of the env's data set.
        split: its name, for `extra_info`.
        columns: those of the schema and the fields of its structs; lists or arrays.
        start: index of the first row.
    """
    import pyarrow as pa

    size = len(columns["prompt"])
    given: dict[str, Any] = {
        **columns,
        "ability": pa.repeat("math", size),
        "split": pa.repeat(split, size),
        "index": pa.array(range(start, start + size), pa.int64()),
    }

    def array(part: pa.Field) -> pa.Array:
        if part.name in given:
            values = given[part.name]
            return values if isinstance(values, pa.Array) else pa.array(values, part.type)
        return pa.StructArray.from_arrays([array(one) for one in part.type], fields=list(part.type))

    return pa.table([array(part) for part in schema], schema=schema)


def choose_prompt(
    own: list[Message] | None, templates: Sequence[Any], render: Callable[[Any], list[Message]]
) -> tuple[list[Message], str]:
    """Returns a row's own prompt, else the first template's, and the template that writes it."""
    if own is None:
        return render(templates[0]), templates[0]
    return own, next((name for name in templates if render(name) == own), UNKNOWN_TEMPLATE)


def own_prompt(record: Record) -> list[Message] | None:
    """Returns the prompt that a row has, None if it has none.

    Raises:
        ValueError: it is no list of messages.
    """
    prompt = record.get("prompt")
    if prompt is None:
        return None
    if not isinstance(prompt, list) or not prompt or not all(map(_is_message, prompt)):
        raise ValueError(
            f"prompt={shown(prompt)} must be a list of {{role, content}}, both texts, as verl's"
        )
    return [Message(role=message["role"], content=message["content"]) for message in prompt]


def struct_of(record: Record, name: str) -> Record:
    """Returns a struct of a row; an absent one is empty.

    Raises:
        ValueError: it is no struct.
    """
    part = record.get(name)
    if part is not None and not isinstance(part, dict):
        raise ValueError(f"{name}={shown(part)} must be an object with named fields")
    return part or {}


def text_of(record: Record, extra: Record, name: str) -> str | None:
    """Returns a text of a row, or else of its `extra_info`; None if neither has it.

    Raises:
        ValueError: it is no text.
    """
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
