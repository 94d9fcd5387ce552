"""Countdown's prompts: byte for byte those of the field's data, so that models and logs compare."""

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

from rl_core.envs.rows import LEAD_IN, in_conversation
from rl_core.types import Message

DATA_SOURCE: Final = "countdown"
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
_WHOLE_PROMPT = {
    "base": in_conversation(_QUESTION),
    "qwen-instruct": (
        f"<|im_start|>system\n{_SYSTEM}<|im_end|>\n<|im_start|>user\n {_QUESTION}<|im_end|>\n"
        f"<|im_start|>assistant\n{LEAD_IN}"
    ),
}


def render_messages(template: Template, numbers: Sequence[int], target: int) -> list[Message]:
    """Returns the `prompt` column of one puzzle; only `chat` needs a tokenizer's chat template."""
    puzzle = {"numbers": list(numbers), "target": target}
    return [
        Message(role=message["role"], content=message["content"].format(**puzzle))
        for message in message_templates(template)
    ]


def message_templates(template: Template) -> list[Message]:
    """Returns the messages of `render_messages`, with {numbers} and {target} not filled in."""
    if template != "chat":
        return [Message(role="user", content=_WHOLE_PROMPT[template])]
    return [Message(role="system", content=_SYSTEM), Message(role="user", content=_QUESTION)]
