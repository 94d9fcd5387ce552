r"""How a number in a text is read: the one table, for truths and for both ways to find an answer.

"18", "18.00", "$18", "€1,800", "1 800" with a no-break space, "−5" with any minus, `**18**` and
`\boxed{18}` are read as people read them. What makes another number of it is part of it, and has
no value here: "18k", "2 dozen", "1/2", "10^2", "5e3", "12:30", "2 and a half". No part of a pattern
can match in two ways, so each reading is linear in the length of the text.
"""  # noqa: RUF002  # the minus is meant

import re
from collections import deque
from collections.abc import Iterator
from fractions import Fraction
from typing import Final, NamedTuple

from rl_core.types import ScoredText

LONGEST: Final = 64
"""A longer number has no value: comparing it could cost more than reading it."""

# Other characters for the same, one for one: a place in the text stays the same place.
_SAME: Final = str.maketrans(
    "\u2212\u2010\u2011\u2012\u2013\ufe63\uff0d€£¥₹₩₽₺₫₪₦₱฿¢￥￡＄０１２３４５６７８９．，",  # noqa: RUF001
    "-------" + "$" * 16 + "0123456789.,",
)
_GAP: Final = r"(?:,(?!\\)|\{,\}|,?\\[,!]|['\u2019_\u00a0\u2007\u2009\u202f])"  # of thousands
_SIGN: Final = r"(?:(?<![\w).])-\$?|\$-?)?"  # behind a digit or a parenthesis, it is a subtraction
_NUMBER: Final = rf"{_SIGN}(?:(?:\d{{1,3}}(?:{_GAP}\d{{3}})+(?!\d)|\d+)(?:\.\d+)?|(?<!\w)\.\d+)"
_ANY: Final = re.compile(_NUMBER, re.ASCII)
_OPENING: Final = (  # what may stand between #### and its number
    r"(?:[*_`\"'\s]|\$(?=[\\*\s])|\\(?:[(\[]|(?=\$)|boxed\{|text(?:bf)?\{)"
    r"|(?i:minus|negative)(?=\s)|(?:US|Rs\.?|[A-Z]{3}\b)(?=[\s$]*-?[\d.]))*+"
)
_MARKED: Final = re.compile(rf"####{_OPENING}\+?({_NUMBER})([^\n#<]*)", re.ASCII)
# Behind a number it makes another one of it, whatever else the text says.
_FACTOR: Final = re.compile(
    r"\s?[\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2079\u2150-\u215f]|[MB]\b"
    r"|(?i:[^\S\n]*(?:k|mn|mio|bn|hundreds?|thousands?|millions?|billions?|trillions?|dozens?"
    r"|lakhs?|crores?|squared|cubed|and\s+(?:an?|one)\s+(?:half|third|quarter))\b)"
)
# Before a number: it is a part of another one.
_PART: Final = re.compile(
    r"(?:\d\s*[/\u2044\u2215]\s*|\d[.:]|\d[eE][-+]?|\d\*\*\s*|\^[{(]?|\}\s*\{|√|sqrt[{(]?)$"
)
_MINUS: Final = re.compile(r"(?<![\d)])(?<![\d)]\s)\b(?:minus|negative)\s$", re.IGNORECASE)
# Behind the number of a mark: there is more than one, or a calculation.
_MORE: Final = re.compile(r"\s*(?:or|and|to|plus|minus|times|divided|multiplied)\b", re.IGNORECASE)
_UNIT_POWER: Final = re.compile(  # the square or cube of a unit is no other number: 18 m^2
    r"((?<=[^\W\d_][^\W\d_])|(?<=[^\W\d_ex]))\^?[23²³](?!\w)", re.IGNORECASE
)


class Number(NamedTuple):
    """A number as it is written, and its value in digits; None if it is another than it seems."""

    text: str
    digits: str | None

    @property
    def value(self) -> Fraction | None:
        """The exact value."""
        return None if self.digits is None else Fraction(self.digits)


def numbers(text: str) -> Iterator[Number]:
    """Yields all numbers of a text."""
    same = _same(text)
    return (_number(text, same, *match.span()) for match in _ANY.finditer(same))


def last_number(text: str) -> Number | None:
    """Returns the last number of a text."""
    same = _same(text)
    last = deque(_ANY.finditer(same), maxlen=1)
    return _number(text, same, *last[0].span()) if last else None


def marked_number(text: str) -> Number | None:
    """Returns the last number after `####`; on its line only a unit or punctuation may follow."""
    same = _same(text)
    for match in deque(_MARKED.finditer(same), maxlen=1):
        rest = match[2]
        if _FACTOR.match(rest) or _MORE.match(rest) or any(map(str.isnumeric, rest)):
            return Number(text[match.start(1) : match.end()].strip()[:LONGEST], None)
        return _number(text, same, *match.span(1))
    return None


def number_of(text: str) -> Number | None:
    """Returns the number that a short text is, with its marks and a unit of at most two words."""
    number = None if "#" in text or "\n" in text.strip() else marked_number(f"####{text}")
    is_short = number is not None and len(text.partition(number.text)[2].split()) <= 2
    return number if is_short else None


def _same(text: str) -> str:
    """Returns a text as long, in ASCII where that means the same, without powers of units."""
    return _UNIT_POWER.sub(lambda power: " " * len(power[0]), text.translate(_SAME))


def _number(text: str, same: str, start: int, end: int) -> Number:
    digits = re.sub(r"[^\d.-]", "", same[start:end])
    before = same[max(start - 12, 0) : start]
    if (minus := _MINUS.search(before)) is not None:
        start -= len(minus[0])
        digits = f"-{digits.removeprefix('-')}"
    is_other = _PART.search(before) or _FACTOR.match(same, end) or len(digits) > LONGEST
    return Number(text[start:end], None if is_other else digits)


def extract_truth(answer: str) -> str:
    """Returns the number after the last `####` of an answer, as digits: `$1,800.` is 1800."""
    _, mark, end = answer.rpartition("####")
    number = marked_number(f"####{end}") if mark else None
    if number is None or number.digits is None:
        why = f" ({number.text} is not one plain number: write it out)" if number else ""
        raise ValueError(
            "a GSM8K answer must end with '#### <number>'; this one does not: "
            f"...{answer[-60:]!r}{why}"
        )
    return number.digits


def score_response(
    response: str,
    truth: str,
    *,
    answer_from: str = "strict",
    format_score: float = 0.0,
    full_score: float = 1.0,
) -> ScoredText:
    """Scores one response: total, deterministic and linear in its length.

    `strict` takes the last number after `####`; on its line only a unit or punctuation may follow.
    `lenient` takes the last number. The verdict is `no_answer` (score 0), `wrong_value`
    (`format_score`) or `correct` (`full_score`).
    """
    expected = number_of(truth)
    if expected is None or expected.value is None:
        raise ValueError(f"ground truth {truth!r} is not a number")
    number = marked_number(response) if answer_from == "strict" else last_number(response)
    if number is None:
        return ScoredText(0.0, "no_answer", None)
    value = None if number.value is None else str(number.value)
    if number.value == expected.value:
        return ScoredText(full_score, "correct", number.text, value)
    return ScoredText(format_score, "wrong_value", number.text, value)
