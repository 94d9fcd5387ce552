"""GSM8K: the score of a response (data path stage 4).

Numbers are read as people write them: "18", "18.", "18.00", "$18" and "1,800".
"""

from __future__ import annotations

import re
from collections import deque
from fractions import Fraction
from typing import Literal, TypeAlias

from rl_core.types import ScoredText

MAX_NUMBER_LENGTH = 64
"""A longer number is never equal to anything: comparing it exactly could cost more than reading
it."""

AnswerFrom: TypeAlias = Literal["strict", "lenient"]

# Thousands only where every comma has three digits behind it; a minus after a digit or a closing
# parenthesis is a subtraction. No part can match in two ways, so the search is linear.
_SIGN = r"(?:(?<![\w).])-\$?|\$-?)?"
_NUMBER = _SIGN + r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|(?<!\w)\.\d+)"
_LENIENT = re.compile(f"({_NUMBER})", re.ASCII)
_STRICT = re.compile(rf"####\s*\+?({_NUMBER})([^\n#<]*)", re.ASCII)
# What makes another number of it, behind the number: 1/2, 10^2, 5e3, 12:30, 18 or 19, 2 and a half,
# 3 million. Not the square or cube of a unit: 18 m^2.
_UNIT_POWER = re.compile(r"((?<=[^\W\d_][^\W\d_])|(?<=[^\W\d_ex]))\^?[23²³](?!\w)", re.IGNORECASE)
_OTHER_NUMBER = re.compile(
    r"\s*(or|and|to|plus|minus|times|hundred|thousand|million|billion)\b", re.IGNORECASE
)
_PLAIN = re.compile(r"-?(?:\d+(?:\.\d+)?|\.\d+)", re.ASCII)


def extract_truth(answer: str) -> str:
    """Returns the text after the last `####` of a data set's answer, commas removed.

    Raises:
        ValueError: there is none, or it is not a number.
    """
    truth = answer.rpartition("####")[2].strip().replace(",", "")
    if "####" not in answer or _value(truth) is None:
        raise ValueError(
            f"a GSM8K answer must end with '#### <number>'; this one does not: ...{answer[-60:]!r}"
        )
    return truth


def score_response(
    response: str,
    truth: str,
    *,
    answer_from: AnswerFrom = "strict",
    format_score: float = 0.0,
    full_score: float = 1.0,
) -> ScoredText:
    """Scores one response: total, deterministic and linear in its length.

    Args:
        response: what the model wrote after the prompt; any text.
        truth: the right number, as text.
        answer_from: `strict` takes the last number after `####`, behind which only a unit or
            punctuation may follow on the line; `lenient` takes the last number.
        format_score: score of a number that is wrong.
        full_score: score of the right number.

    Returns:
        `no_answer` (score 0), `wrong_value` (format_score) or `correct` (full_score).

    Raises:
        ValueError: `answer_from` is neither of the two, or `truth` is no number.
    """
    if answer_from not in ("strict", "lenient"):
        raise ValueError(f"answer_from={answer_from!r} must be 'strict' or 'lenient'")
    expected = _value(truth)
    if expected is None:
        raise ValueError(f"ground truth {truth!r} is not a number")
    found = _last(_STRICT if answer_from == "strict" else _LENIENT, response)
    if found is None:
        return ScoredText(0.0, "no_answer", None)
    answer = found[1]
    number = _value(answer)
    if answer_from == "strict" and _goes_on(found[2]):
        answer, number = f"{answer}{found[2]}".strip()[:MAX_NUMBER_LENGTH], None
    value = None if number is None else str(number)
    if number == expected:
        return ScoredText(full_score, "correct", answer, value)
    return ScoredText(format_score, "wrong_value", answer, value)


def is_number(text: object) -> bool:
    """Says whether a ground truth is a number that can be compared."""
    return isinstance(text, str) and _value(text) is not None


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    matches = deque(pattern.finditer(text), maxlen=1)
    return matches[0] if matches else None


def _goes_on(rest: str) -> bool:
    """Says whether more of a number stands behind it on its line."""
    if _OTHER_NUMBER.match(rest):
        return True
    return any(character.isnumeric() for character in _UNIT_POWER.sub("", rest))


def _value(number: str) -> Fraction | None:
    """Returns a number's exact value; None where it is none, or absurdly long."""
    plain = number.strip().replace(",", "").replace("$", "").removesuffix(".")
    if len(plain) > MAX_NUMBER_LENGTH or not _PLAIN.fullmatch(plain):
        return None
    return Fraction(plain)
