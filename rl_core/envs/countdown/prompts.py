"""Countdown: a puzzle's prompt text (data path stage 1).

Texts are byte for byte those of the field's data, so that models and logs compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from rl_core.types import Message

DATA_SOURCE = "countdown"

Template: TypeAlias = Literal["base", "qwen-instruct", "chat"]

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

    Args:
        template: `base` or `qwen-instruct`.
        numbers: in the order in which they are shown.
        target: what they shall make.

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

    The last message is the user's, and alone holds them.
    """
    if template != "chat":
        return [Message(role="user", content=_WHOLE_PROMPT[template])]
    return [Message(role="system", content=_SYSTEM), Message(role="user", content=_QUESTION)]
