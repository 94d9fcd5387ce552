"""Countdown: the score of a response (data path stage 4). Not the parser (`arithmetic`)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from rl_core.envs.countdown.arithmetic import ASCII_SPACE, ExpressionError, parse, run
from rl_core.envs.text_problems import AnswerFrom, find_answer

Verdict: TypeAlias = Literal[
    "no_answer",
    "too_long",
    "bad_syntax",
    "wrong_numbers",
    "division_by_zero",
    "wrong_value",
    "correct",
]


class ScoredResponse(NamedTuple):
    """What one response earned, and why."""

    score: float
    verdict: Verdict
    answer: str | None
    """Text between the answer tags without surrounding ASCII white space; None if there is none."""
    value: Fraction | None
    """Exact value of an answer that uses the right numbers; None if it was not computed."""


as_fraction = lru_cache(1_024)(Fraction)
"""Making a Fraction takes as long as the arithmetic of an ordinary answer."""
_NO_ANSWER = ScoredResponse(0.0, "no_answer", None, None)


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
    raw = find_answer(response, answer_from)
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
                return ScoredResponse(full_score, "correct", answer, as_fraction(value))
            return ScoredResponse(format_score, "wrong_value", answer, as_fraction(value))
    except ExpressionError as error:
        verdict = error.verdict
    return ScoredResponse(format_score, verdict, answer, None)
