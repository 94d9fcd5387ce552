"""One row of a user's file -> one checked problem: what the envs' readers share (stage 1).

A row has the columns of its env, or of verl and TinyZero (`prompt`, `reward_model`), or our own. A
row's own prompt is kept as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rl_core.types import Message

Record = dict[str, Any]
"""A row as it is read, by column."""

COLUMNS = ("prompt", "reward_model", "extra_info")
"""What any env's rows may have, beside its own columns."""
UNKNOWN_TEMPLATE = "unknown"
_SHOWN_CHARACTERS = 80


@dataclass(frozen=True, slots=True)
class OwnProblem:
    """One row, read and checked."""

    key: tuple[Any, ...]
    """Rows with equal keys are one problem: (sorted numbers, target), or the prompt's texts."""
    prompt: list[Message]
    template: str
    """Which template of the env writes this prompt; `UNKNOWN_TEMPLATE` if none does."""
    truth: Any
    """In the env's own shape."""
    solution: str = ""
    num_solutions: int = 0
    data_source: str = ""
    """The row's own, where the env keeps it."""
    extra_info: str = ""
    """The row's own, as JSON, where the env keeps it for `env.reward`; empty where it has none."""


def choose_prompt(
    own: list[Message] | None, templates: Sequence[Any], render: Callable[[Any], list[Message]]
) -> tuple[list[Message], str]:
    """Returns a row's own prompt, else the first template's, and the template that writes it."""
    if own is None:
        return render(templates[0]), templates[0]
    return own, next((name for name in templates if render(name) == own), UNKNOWN_TEMPLATE)


def own_prompt(record: Record) -> list[Message] | None:
    """Returns the prompt that a row has, None where it has none.

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
    """Returns a text of a row, or else of its `extra_info`; None where neither has it.

    Raises:
        ValueError: it is no text.
    """
    value = record.get(name) if record.get(name) is not None else extra.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name}={shown(value)} must be a text")
    return value


def shown(value: Any) -> str:
    """Returns a value as a message shows it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def columns_of(
    data_source: str, split: str, problems: Sequence[OwnProblem]
) -> dict[str, list[Any]]:
    """Returns the columns that the rows of every env have."""
    return {
        "data_source": [data_source] * len(problems),
        "prompt": [problem.prompt for problem in problems],
        "ability": ["math"] * len(problems),
        "reward_model": [{"style": "rule", "ground_truth": p.truth} for p in problems],
        "extra_info": [
            {
                "split": split,
                "index": index,
                "num_solutions": problem.num_solutions,
                "solution": problem.solution,
            }
            for index, problem in enumerate(problems)
        ],
    }


def _is_message(message: Any) -> bool:
    return isinstance(message, dict) and all(
        isinstance(message.get(key), str) for key in ("role", "content")
    )
