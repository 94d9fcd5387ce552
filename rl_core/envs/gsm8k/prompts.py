"""GSM8K: a word problem's prompt text (data path stage 1)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from rl_core.types import Message

DATA_SOURCE = "openai/gsm8k"

Template: TypeAlias = Literal["chat", "think"]

_THINK = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant "
    "solves it. The assistant first thinks about the reasoning process in the mind and then "
    "provides the user with the answer.\nUser: {question} Show your work in <think> </think> tags. "
    "And write the final answer as a number after ####, for example #### 18.\n"
    "Assistant: Let me solve this step by step.\n<think>"
)
_CHAT = '{question} Let\'s think step by step and output the final answer after "####".'


def render_messages(template: Template, question: str) -> list[Message]:
    """Returns the `prompt` column of one question, one user message.

    Args:
        template: `chat` is rendered by the tokenizer's own chat template, `think` is a whole prompt
            text to be tokenized raw.
        question: the word problem.
    """
    text = {"chat": _CHAT, "think": _THINK}[template]
    return [Message(role="user", content=text.replace("{question}", question))]
