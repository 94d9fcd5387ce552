"""Countdown: how a puzzle is asked, and how a user's row states one (data path stage 1).

Prompts are byte for byte those of the field's data, so that models and logs compare.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from rl_core.envs.rows import Record, shown, struct_of
from rl_core.types import Message

DATA_SOURCE: Final = "countdown"

Template: TypeAlias = Literal["base", "qwen-instruct", "chat"]

NUM_OPERANDS, NUMBERS, TARGETS = range(2, 7), range(1, 1_000), range(1, 10**18)
"""What the solver takes."""
_LONGEST_NUMBER: Final = 20

_QUESTION = (
    "Using the numbers {numbers}, create an equation that equals {target}. "
    "You can use basic arithmetic operations (+, -, *, /) and each number can only be used once. "
    "Show your work in <think> </think> tags. And return the final answer in <answer> </answer> "
    "tags, for example <answer> (1 + 2) / 3 </answer>."
)
_SYSTEM = (
    "You are a helpful assistant. You first thinks about the reasoning process in the mind "
    "and then provides the user with the answer."
)
_LEAD_IN = "Let me solve this step by step.\n<think>"
_WHOLE_PROMPT = {
    "base": (
        "A conversation between User and Assistant. The user asks a question, and the Assistant "
        "solves it. The assistant first thinks about the reasoning process in the mind and then "
        f"provides the user with the answer.\nUser: {_QUESTION}\nAssistant: {_LEAD_IN}"
    ),
    "qwen-instruct": (
        f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n {_QUESTION}<|im_end|>\n"
        f"<|im_start|>assistant\n{_LEAD_IN}"
    ),
}


def render_prompt(template: Template, numbers: Sequence[int], target: int) -> str:
    """Returns the whole prompt text of one puzzle, to be tokenized raw.

    Raises:
        ValueError: the template is `chat`, whose text only a tokenizer knows.
    """
    if template not in _WHOLE_PROMPT:
        raise ValueError(
            f"env.prompt_template={template} has no text of its own: a tokenizer's chat template "
            f"renders it; use one of {', '.join(_WHOLE_PROMPT)}"
        )
    return _WHOLE_PROMPT[template].format(numbers=list(numbers), target=target)


def render_messages(template: Template, numbers: Sequence[int], target: int) -> list[Message]:
    """Returns the `prompt` column of one puzzle.

    Args:
        template: `base` and `qwen-instruct` give one user message that holds the whole prompt text;
            `chat` gives role messages for the tokenizer's own chat template.
        numbers: in the order in which they are shown.
        target: what they shall make.
    """
    return [
        Message(
            role=message["role"],
            content=message["content"].format(numbers=list(numbers), target=target),
        )
        for message in message_templates(template)
    ]


def message_templates(template: Template) -> list[Message]:
    """Returns the messages of `render_messages` with {numbers} and {target} still to be filled.

    Only the last message, the user's, holds them.
    """
    if template != "chat":
        return [Message(role="user", content=_WHOLE_PROMPT[template])]
    return [Message(role="system", content=_SYSTEM), Message(role="user", content=_QUESTION)]


def stated_puzzle(record: Record) -> tuple[list[int], int]:
    """Returns the numbers and the target that a row states, once or twice.

    Raises:
        ValueError: something is missing, of a wrong type or outside what the solver takes.
    """
    truth = _from_text(struct_of(record, "reward_model").get("ground_truth"))
    stated: list[tuple[Any, Any]] = []
    own = record.get("nums") if record.get("nums") is not None else record.get("numbers")
    if own is not None or record.get("target") is not None:
        stated.append((_whole(own), _whole(record.get("target"))))
    if truth is not None:
        if not isinstance(truth, dict):
            raise ValueError(f"ground_truth={shown(truth)} must be {{target, numbers}}")
        stated.append((_whole(truth.get("numbers")), _whole(truth.get("target"))))
    if not stated:
        raise ValueError(
            "it has neither nums (or numbers) and target nor reward_model.ground_truth: add them"
        )
    numbers, target = stated[0]
    _check_numbers(numbers)
    if type(target) is not int or target not in TARGETS:
        raise ValueError(
            f"target={shown(target)} must be a whole number from {TARGETS[0]} to {TARGETS[-1]:.0e}"
        )
    if stated[-1] != stated[0]:
        raise ValueError(
            f"nums={numbers} and target={target} are not those of reward_model.ground_truth "
            f"({shown(truth)}): correct one of them"
        )
    return numbers, target


def _from_text(value: Any) -> Any:
    """Returns a list or an object that a file holds as JSON text; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _whole(value: Any) -> Any:
    """Returns 40.0 and "40" as 40, also in lists and in lists that are text; all else as it is."""
    value = _from_text(value)
    if isinstance(value, list):
        return [_whole(item) if not isinstance(item, list) else item for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _LONGEST_NUMBER:
        return int(value)
    return value


def _check_numbers(numbers: Any) -> None:
    limits = f"the solver takes whole numbers from {NUMBERS[0]} to {NUMBERS[-1]}"
    if not isinstance(numbers, list):
        raise ValueError(f"nums={shown(numbers)} must be a list: {limits}")
    if len(numbers) not in NUM_OPERANDS:
        raise ValueError(
            f"nums={shown(numbers)} holds {len(numbers)} numbers, the solver takes "
            f"{NUM_OPERANDS[0]} to {NUM_OPERANDS[-1]}: leave the row out"
        )
    for number in numbers:
        if type(number) is not int or number not in NUMBERS:
            raise ValueError(
                f"nums={shown(numbers)} holds {shown(number)}, {limits}: leave the row out"
            )
