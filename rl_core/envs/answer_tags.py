"""Where a response's answer stands: between `<answer>` and `</answer>` (data path stage 4)."""

from __future__ import annotations

from typing import Literal, TypeAlias

OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"

AnswerFrom: TypeAlias = Literal["anywhere", "last_line"]


def find_answer(response: str, answer_from: AnswerFrom) -> str:
    """Returns the text between the last closing tag and the nearest opening one before it.

    Empty where there is none; linear in the response's length.

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
