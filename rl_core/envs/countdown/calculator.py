"""A calculator to ask in a response: `<calc>3*7</calc>` is answered by `21` (`env.max_turns`)."""

from __future__ import annotations

import re
from typing import Final

from rl_core.envs.countdown.arithmetic import ASCII_SPACE, ExpressionError, evaluate

CALL_OPEN, CALL_CLOSE = "<calc>", "</calc>"
NO_VALUE: Final = "error"
_ANSWER: Final = re.compile(rf"(?<={CALL_CLOSE})(\d+)")


def answer_call(response: str) -> str | None:
    """Returns the exact value of the call that a response ends with; None where it has ended.

    In lowest terms, `7/2`; `error` for what the scorer's parser does not read, or cannot divide.
    Bounded by that parser's limits for any text, as is the length of what is returned.
    """
    before, close, after = response.rpartition(CALL_CLOSE)
    # The token that closes the call may hold white space too.
    if not close or after.strip(ASCII_SPACE):
        return None
    _, opened, expression = before.rpartition(CALL_OPEN)
    if not opened:
        return NO_VALUE
    try:
        return str(evaluate(expression))
    except ExpressionError:
        return NO_VALUE


def written_call(x: int, op: str, y: int, value: int) -> str:
    """Returns a call and its answer, as a response shows them."""
    return f"{CALL_OPEN}{x}{op}{y}{CALL_CLOSE}{value}"


def turns_of(response: str) -> tuple[str, ...]:
    """Returns the pieces of a response with answered calls, the model's and the env's by turns.

    None where there is no call.
    """
    pieces = _ANSWER.split(response)
    return tuple(pieces) if len(pieces) > 1 else ()
