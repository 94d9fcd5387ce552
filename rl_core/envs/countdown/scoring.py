"""Countdown's rule: reads and evaluates arithmetic, scores a response.

Data path stage 4. Exact, total, never `eval`. It is not a Python parser: `**`, `//`, decimals,
names and unicode digits have no meaning here. A text's skeleton, which has a 0 for every digit, is
read once, left to right, with two explicit stacks, and remembered: most answers of a model have
been seen before with other numbers.
"""

import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

from rl_core.envs.rows import find_answer
from rl_core.types import ScoredText

MAX_LENGTH = 256
"""Longest expression that is read, in characters."""
MAX_DEPTH = 32
"""Deepest nesting of parentheses that is read."""
CACHED_SKELETONS = 2_048
"""Of at most `MAX_LENGTH` characters each: about 8 MB, whatever the models write."""

ASCII_SPACE = " \t\n\r\f\v"

Operation: TypeAlias = Callable[[Any, Any], int | Fraction]
Instruction: TypeAlias = tuple[Operation, int, int]
"""An operation on the numbers at two places; the result replaces the first."""
Program: TypeAlias = tuple[Instruction, ...]
"""In evaluation order: 1 - (2 + 3) is ((+, 1, 2), (-, 0, 1)). The result ends up at place 0."""

_TO_SKELETON = bytes(ord("0") if chr(c).isdecimal() else c for c in range(256))
_TO_DIGITS = bytes(c if chr(c).isdecimal() else ord(" ") for c in range(256))
_TOKEN = re.compile(f"0+|[^{ASCII_SPACE}]")
_as_int = lru_cache(1_024)(int)
"""Puzzles have few numbers; parsing one takes twice as long as finding it in this cache."""
_OPERAND = "0"
_NEGATE = "neg"
_PRECEDENCE = {"+": 1, "-": 1, _NEGATE: 2, "*": 2, "/": 2}


class ExpressionError(ValueError):
    """Why a text has no value, as a verdict: too_long, bad_syntax or division_by_zero."""


def score_response(
    response: str,
    numbers: Sequence[int],
    target: int,
    *,
    answer_from: str = "anywhere",
    format_score: float = 0.1,
    full_score: float = 1.0,
) -> ScoredText:
    """Scores one response: total, deterministic, silent, and linear in the response's length.

    The answer must use each number exactly once. The verdict is the first that applies of no_answer
    (score 0), too_long, bad_syntax, wrong_numbers, division_by_zero, wrong_value (`format_score`)
    and correct (`full_score`).
    """
    raw = find_answer(response, answer_from)
    answer = raw.strip(ASCII_SPACE)
    if not answer or answer.isspace():
        return ScoredText(0.0, "no_answer", None)
    try:
        used, program = parse(raw)
        if sorted(used) != sorted(numbers):
            return ScoredText(format_score, "wrong_numbers", answer)
        value = run(program, used)
    except ExpressionError as error:
        return ScoredText(format_score, str(error), answer)
    if value == target:
        return ScoredText(full_score, "correct", answer, str(value))
    return ScoredText(format_score, "wrong_value", answer, str(value))


def parse(text: str) -> tuple[list[int], Program]:
    """Returns the integers in `text`, in their order, and the program that combines them.

    Integers are ASCII digits without a leading zero; + - * / as in school; parentheses; ASCII white
    space between them; a minus sign at the start or directly after an opening parenthesis. Raises
    ExpressionError: `too_long` (more than `MAX_LENGTH` characters or `MAX_DEPTH` levels of
    parentheses, whatever else is wrong), else `bad_syntax`.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError("too_long")
    ascii_text = text.encode("ascii", "replace")  # what is not ASCII becomes a question mark
    # The second step lets numbers of one and of two digits share a skeleton.
    program = compiled(ascii_text.translate(_TO_SKELETON).replace(b"00", b"0"))
    if isinstance(program, str):
        raise ExpressionError(program)
    # As text again: `in` and reading a number take a third of the time that they take in bytes.
    digits = " " + ascii_text.translate(_TO_DIGITS).decode()
    numerals = digits.split()
    if " 0" in digits and any(n.startswith("0") and n != "0" for n in numerals):
        raise ExpressionError("bad_syntax")
    return list(map(_as_int, numerals)), program


def run(program: Program, numbers: Sequence[int | Fraction]) -> int | Fraction:
    """Returns the exact value of a parsed text, an int if no fraction came up on the way."""
    values = [*numbers]
    try:
        for operation, place, other in program:
            values[place] = operation(values[place], values[other])
    except ZeroDivisionError:
        raise ExpressionError("division_by_zero") from None
    return values[0]


@lru_cache(CACHED_SKELETONS)
def compiled(skeleton: bytes) -> Program | str:
    """Returns the program of all texts with this skeleton, or the verdict on all of them.

    Source: Dijkstra 1961, "Algol 60 translation" (the shunting yard).
    """
    tokens = _TOKEN.findall(skeleton.decode())
    if max(accumulate((token == "(") - (token == ")") for token in ["", *tokens])) > MAX_DEPTH:
        return "too_long"
    output: list[str] = []
    pending: list[str] = []
    previous = "("  # the start of the text is like the start of a parenthesis
    for token in tokens:
        operand_wanted = previous in "(+-*/"
        if token.startswith("0"):
            fits = operand_wanted
            output.append(_OPERAND)
        elif token == "(":
            fits = operand_wanted
            pending.append(token)
        elif token == ")":
            fits = not operand_wanted and _pop_until_open(output, pending)
        else:
            negates = token == "-" and previous == "("
            fits = token in "+-*/" and (negates or not operand_wanted)
            if fits:
                _push_operator(_NEGATE if negates else token, output, pending)
        if not fits:
            return "bad_syntax"
        previous = token
    if previous in "(+-*/" or "(" in pending:
        return "bad_syntax"
    return _instructions([*output, *reversed(pending)])


def _instructions(postfix: list[str]) -> Program:
    """Returns the program of operands and operators in evaluation order."""
    instructions: list[Instruction] = []
    stack: list[int] = []
    num_operands = 0
    for symbol in postfix:
        if symbol == _OPERAND:
            stack.append(num_operands)
            num_operands += 1
        else:
            other = stack[-1] if symbol == _NEGATE else stack.pop()
            instructions.append((_OPERATIONS[symbol], stack[-1], other))
    return tuple(instructions)


def _push_operator(symbol: str, output: list[str], pending: list[str]) -> None:
    """Emits operators that bind at least as tightly (left-associative), then holds this one."""
    while symbol != _NEGATE and pending and _PRECEDENCE.get(pending[-1], 0) >= _PRECEDENCE[symbol]:
        output.append(pending.pop())
    pending.append(symbol)


def _pop_until_open(output: list[str], pending: list[str]) -> bool:
    """Emits the operators held since the parenthesis; returns whether one was open."""
    while pending and pending[-1] != "(":
        output.append(pending.pop())
    return bool(pending and pending.pop())


def _divide(left: int | Fraction, right: int | Fraction) -> int | Fraction:
    """Returns the exact quotient: a Fraction only if it must be one, since they are slow."""
    quotient, rest = divmod(left, right)
    return Fraction(left) / right if rest else quotient


_OPERATIONS: dict[str, Operation] = {
    _NEGATE: lambda number, _: -number,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}
