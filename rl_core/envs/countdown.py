"""Countdown: a puzzle's prompt text (data path stage 1) and the score of a response (stage 4).

Not the generator (`puzzles`) and not the parser (`arithmetic`). Prompt texts are byte for byte
those of the field's data, so that models and logs compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from rl_core.envs.arithmetic import ASCII_SPACE, ExpressionError, parse, run
from rl_core.types import Message

DATA_SOURCE = "countdown"
OPEN_TAG, CLOSE_TAG = "<answer>", "</answer>"

Template: TypeAlias = Literal["base", "qwen-instruct", "chat"]
AnswerFrom: TypeAlias = Literal["anywhere", "last_line"]
Verdict: TypeAlias = Literal[
    "no_answer",
    "too_long",
    "bad_syntax",
    "wrong_numbers",
    "division_by_zero",
    "wrong_value",
    "correct",
]

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


class ScoredResponse(NamedTuple):
    """What one response earned, and why."""

    score: float
    verdict: Verdict
    answer: str | None
    """Text between the answer tags without surrounding ASCII white space; None if there is none."""
    value: Fraction | None
    """Exact value of an answer that uses the right numbers; None if it was not computed."""


_as_fraction = lru_cache(1_024)(Fraction)
"""Making a Fraction takes as long as the arithmetic of an ordinary answer."""
_NO_ANSWER = ScoredResponse(0.0, "no_answer", None, None)


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


def score_response(
    response: str,
    numbers: Sequence[int],
    target: int,
    *,
    answer_from: AnswerFrom = "anywhere",
    format_score: float = 0.1,
    full_score: float = 1.0,
) -> ScoredResponse:
    """Scores one response: total, deterministic, silent, and linear in the response's length.

    Args:
        response: what the model wrote after the prompt; any text.
        numbers: the puzzle's numbers; the answer must use each exactly once.
        target: the value that the answer must have, exactly.
        answer_from: `last_line` reads tags on the response's last line only, as TinyZero does.
        format_score: score of an answer that is not correct.
        full_score: score of a correct answer.

    Returns:
        The first verdict that applies of no_answer (score 0), too_long, bad_syntax, wrong_numbers,
        division_by_zero, wrong_value (format_score) and correct (full_score).

    Raises:
        ValueError: `answer_from` is neither of the two.
    """
    raw = _find_answer(response, answer_from)
    answer = raw.strip(ASCII_SPACE)
    if not answer or answer.isspace():
        return _NO_ANSWER
    verdict: Verdict
    try:
        used, program = parse(raw)
        if sorted(used) != sorted(numbers):
            verdict = "wrong_numbers"
        else:
            value = run(program, used)
            if value == target:
                return ScoredResponse(full_score, "correct", answer, _as_fraction(value))
            return ScoredResponse(format_score, "wrong_value", answer, _as_fraction(value))
    except ExpressionError as error:
        verdict = error.verdict
    return ScoredResponse(format_score, verdict, answer, None)


def _find_answer(response: str, answer_from: AnswerFrom) -> str:
    """Returns the text between the last closing tag and the nearest opening one before it."""
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
