"""Questions in words: their prompts, where an answer stands, and the comparison word for word.

Data path stages 1 and 4. A truth that is a text lies in the data set as it is. Any other, a number
or an object, lies there as JSON, its `style` being `JSON_STYLE`.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from rl_core.types import Message, ScoredText

OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"
JSON_STYLE: Final = "json"
LONGEST_ANSWER: Final = 1_000
"""Characters of an answer that are compared: a longer one is wrong."""

AnswerFrom: TypeAlias = Literal["anywhere", "last_line"]
Template: TypeAlias = Literal["chat", "base"]

_QUESTION = (
    "{question}\nShow your work in <think> </think> tags. And return the final answer in <answer> "
    "</answer> tags."
)
_TEXTS: dict[Template, str] = {
    "chat": _QUESTION,
    "base": (
        "A conversation between User and Assistant. The user asks a question, and the Assistant "
        "solves it. The assistant first thinks about the reasoning process in the mind and then "
        f"provides the user with the answer.\nUser: {_QUESTION}\n"
        "Assistant: Let me solve this step by step.\n<think>"
    ),
}


def render_messages(template: Template, question: str) -> list[Message]:
    """Returns the `prompt` column of one question, one user message.

    Args:
        template: `chat` is rendered by the tokenizer's own chat template, `base` is a whole prompt
            text to be tokenized raw.
        question: in words.
    """
    return [Message(role="user", content=_TEXTS[template].replace("{question}", question))]


def question_in(content: str) -> str:
    """Returns what a prompt asks, without the words of the template that wrote it."""
    for template in _TEXTS.values():
        before, _, after = template.partition("{question}")
        if content.startswith(before) and content.endswith(after):
            return content.removeprefix(before).removesuffix(after)
    return content


def prompt_key(prompt: Sequence[Message]) -> tuple[str, ...]:
    """Returns what two prompts share that ask the same: their words, not their white space."""
    return tuple(" ".join(message["content"].split()) for message in prompt)


def text_of_truth(truth: Any) -> str:
    """Returns a truth as a text: a number or an object as JSON."""
    return truth if isinstance(truth, str) else json.dumps(truth, ensure_ascii=False)


def shown_truth(truth: Any) -> str:
    """Returns what is right, as a person reads it: of a truth with a question, its answer."""
    if isinstance(truth, Mapping) and truth.keys() >= {"question", "answer"}:
        truth = truth["answer"]
    return text_of_truth(truth)


def find_answer(response: str, answer_from: AnswerFrom) -> str:
    """Returns the text between the last closing tag and the nearest opening one before it.

    Empty if there is none; linear in the response's length.

    Args:
        response: what the model wrote after the prompt; any text.
        answer_from: `last_line` reads tags on the response's last line only, as TinyZero does.

    Raises:
        ValueError: `answer_from` is neither of the two.
    """
    if answer_from == "anywhere":
        start = 0
    elif answer_from == "last_line":
        start = response.rfind("\n") + 1
    else:
        raise ValueError(f"answer_from={answer_from!r} must be 'anywhere' or 'last_line'")
    close = response.rfind(CLOSE_TAG, start)
    if close < 0:
        return ""
    opening = response.rfind(OPEN_TAG, start, close)
    return "" if opening < 0 else response[opening + len(OPEN_TAG) : close]


def score_text(
    response: str, truth: str, *, answer_from: AnswerFrom, format_score: float, full_score: float
) -> ScoredText:
    """Returns `no_answer`, `wrong_value` or `correct`: an answer in tags must be the truth.

    Case, white space, the form of Unicode (NFKC) and a full stop at the end do not count. Total,
    deterministic and linear in the response's length.
    """
    raw = find_answer(response, answer_from).strip()
    if not raw:
        return ScoredText(0.0, "no_answer", None)
    value = _normal_form(raw) if len(raw) <= LONGEST_ANSWER else None
    if value == _normal_form(truth):
        return ScoredText(full_score, "correct", raw, value)
    return ScoredText(format_score, "wrong_value", raw[:LONGEST_ANSWER], value)


def _normal_form(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).removesuffix(".")
