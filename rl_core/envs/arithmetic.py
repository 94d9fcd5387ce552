"""Reads and evaluates a model's arithmetic: exact, total, never `eval` (reward, stage 4).

It is not a Python parser: `**`, `//`, decimals, names and unicode digits have no meaning here. The
text is read once, left to right, with two explicit stacks, so that no input can cost more than its
length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

MAX_LENGTH = 256
"""Longest expression that is read, in characters."""
MAX_DEPTH = 32
"""Deepest nesting of parentheses that is read."""

ASCII_SPACE = " \t\n\r\f\v"
_DIGITS = frozenset("0123456789")
_NEGATE = "neg"
_PRECEDENCE = {"+": 1, "-": 1, _NEGATE: 2, "*": 2, "/": 2}

ErrorVerdict = Literal["too_long", "bad_syntax", "division_by_zero"]


class ExpressionError(ValueError):
    """Why a text has no value; `verdict` is the scorer's word for it."""

    def __init__(self, verdict: ErrorVerdict) -> None:
        super().__init__(verdict)
        self.verdict: ErrorVerdict = verdict


@dataclass(frozen=True, slots=True)
class Expression:
    """A well-formed expression, not yet evaluated."""

    postfix: tuple[int | str, ...]
    """Integers and operators in evaluation order: (1 + 2) * 3 is 1 2 + 3 *."""

    @property
    def numbers(self) -> list[int]:
        """The integers in the order of the text."""
        return [item for item in self.postfix if isinstance(item, int)]

    def value(self) -> Fraction:
        """Returns the exact value.

        Raises:
            ExpressionError: `division_by_zero`.
        """
        stack: list[Fraction] = []
        for item in self.postfix:
            if isinstance(item, int):
                stack.append(Fraction(item))
            elif item == _NEGATE:
                stack.append(-stack.pop())
            else:
                right = stack.pop()
                stack.append(_apply(item, stack.pop(), right))
        (result,) = stack
        return result


def parse(text: str) -> Expression:
    """Returns the expression that `text` spells, all of it.

    Integers are ASCII digits without a leading zero; + - * / as in school; parentheses; ASCII white
    space between them; a minus sign at the start or directly after an opening parenthesis.

    Raises:
        ExpressionError: `too_long` (more than `MAX_LENGTH` characters or `MAX_DEPTH` levels of
            parentheses, whatever else is wrong), else `bad_syntax`.
    """
    if len(text) > MAX_LENGTH or _depth(text) > MAX_DEPTH:
        raise ExpressionError("too_long")
    output: list[int | str] = []
    pending: list[str] = []
    previous = "("  # the start of the text is like the start of a parenthesis
    for token in _tokens(text):
        operand_wanted = previous in "(+-*/"
        if token[0] in _DIGITS:
            _require(operand_wanted)
            output.append(int(token))
        elif token == "(":
            _require(operand_wanted)
            pending.append(token)
        elif token == ")":
            _require(not operand_wanted)
            _pop_until_open(output, pending)
        else:
            negates = token == "-" and previous == "("
            _require(negates or not operand_wanted)
            _push_operator(_NEGATE if negates else token, output, pending)
        previous = token
    _require(previous not in "(+-*/" and "(" not in pending)
    output.extend(reversed(pending))
    return Expression(tuple(output))


def evaluate(text: str) -> Fraction:
    """Returns the exact value of an expression.

    Raises:
        ExpressionError: the text is no expression or divides by zero.
    """
    return parse(text).value()


def _tokens(text: str) -> Sequence[str]:
    tokens: list[str] = []
    start = 0
    while start < len(text):
        end = start + 1
        if text[start] in _DIGITS:
            while end < len(text) and text[end] in _DIGITS:
                end += 1
            _require(text[start] != "0" or end == start + 1)
        if text[start] not in ASCII_SPACE:
            _require(text[start] in _DIGITS or text[start] in "()+-*/")
            tokens.append(text[start:end])
        start = end
    return tokens


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character == "(":
            depth += 1
            deepest = max(deepest, depth)
        elif character == ")":
            depth -= 1
    return deepest


def _push_operator(operator: str, output: list[int | str], pending: list[str]) -> None:
    """Emits what binds at least as tightly (all associate to the left), then waits."""
    while (
        operator != _NEGATE and pending and _PRECEDENCE.get(pending[-1], 0) >= _PRECEDENCE[operator]
    ):
        output.append(pending.pop())
    pending.append(operator)


def _pop_until_open(output: list[int | str], pending: list[str]) -> None:
    while pending and pending[-1] != "(":
        output.append(pending.pop())
    _require(bool(pending))
    pending.pop()


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if right == 0:
        raise ExpressionError("division_by_zero")
    return left / right


def _require(condition: bool) -> None:
    if not condition:
        raise ExpressionError("bad_syntax")
