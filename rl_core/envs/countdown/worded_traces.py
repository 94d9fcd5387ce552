"""Search traces in words, for models that read English: examples of `sft.data=traces`, stage 0.

Not those of the home-made base model (search_traces.py), whose tokenizer has a handful of words. A
trace writes whole expressions, works each out step by step, says whether it makes the target, and
goes on until one does:

    Try (44 - 19) + 35: 44 - 19 = 25, 25 + 35 = 60. Not 98.
    Try (44 + 19) + 35: 44 + 19 = 63, 63 + 35 = 98. That is 98.

Wrong tries are the nearest of a few drawn by chance; how many there are is geometric. Which try is
right cannot be known from the numbers: searching on until one is is what shall be learned.

A small model learns from them above all that every fourth try is right, and makes it so by numbers
and sums that are not. With a probability of giving up, a search is one that it can do: all tries
are drawn blindly, and it ends at the first that is right, or gives up and answers a wrong one.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, Final

from rl_core.envs.countdown.scoring import parse, run

_MORE_TRIES_PROB: Final = 0.75
"""Of one more wrong try: three on average."""
_MOST_WRONG_TRIES: Final = 10
_CANDIDATES: Final = 3
_BLIND_DRAWS: Final = 10
_SIGNS: Final[dict[Callable[..., Any], str]] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
}


def write_worded_trace(
    numbers: Sequence[int],
    target: int,
    solution: str,
    *,
    rng: random.Random,
    give_up_prob: float = 0.0,
) -> str:
    """Returns a response, from after `<think>` to `</answer>`.

    Args:
        numbers: positive integers.
        target: what they shall make.
        solution: an expression of all numbers that makes it.
        rng: decides the tries.
        give_up_prob: chance of giving up after each wrong try of a blind search (0, 1]; with 0 the
            search is not blind and ends with `solution`.
    """
    if give_up_prob:
        tried, hit = _blind_search(numbers, target, give_up_prob, rng)
    else:
        tried, hit = _wrong_tries(numbers, target, rng), solution
    lines = [f"\nTry {expression}: {_steps(expression)}. Not {target}." for expression in tried]
    if hit is not None:
        lines.append(f"\nTry {hit}: {_steps(hit)}. That is {target}.")
    return f"{''.join(lines)}\n</think>\n<answer>{hit or tried[-1]}</answer>"


def _wrong_tries(numbers: Sequence[int], target: int, rng: random.Random) -> list[str]:
    tried: list[str] = []
    while len(tried) < _MOST_WRONG_TRIES and rng.random() < _MORE_TRIES_PROB:
        wrong = _near_miss(numbers, target, rng)
        if wrong is not None and wrong not in tried:
            tried.append(wrong)
    return tried


def _blind_search(
    numbers: Sequence[int], target: int, give_up_prob: float, rng: random.Random
) -> tuple[list[str], str | None]:
    """Returns wrong tries, and what was right; None if it gave up."""
    tried: list[str] = []
    while True:
        text, value = _blind_try(numbers, target, rng)
        if value == target:
            return tried, text
        if text not in tried:
            tried.append(text)
        if rng.random() < give_up_prob or len(tried) == _MOST_WRONG_TRIES:
            return tried, None


def _blind_try(numbers: Sequence[int], target: int, rng: random.Random) -> tuple[str, int]:
    """Returns an expression that is not absurdly large, as can be seen without working it out."""
    for _ in range(_BLIND_DRAWS):
        text, value = _random_expression(numbers, rng)
        if value <= 2 * target:
            break
    return text, value


def _near_miss(numbers: Sequence[int], target: int, rng: random.Random) -> str | None:
    """Returns the nearest of some expressions that do not make the target; None if all do."""
    drawn = [_random_expression(numbers, rng) for _ in range(_CANDIDATES)]
    wrong = [(abs(value - target), text) for text, value in drawn if value != target]
    return min(wrong)[1] if wrong else None


def _random_expression(numbers: Sequence[int], rng: random.Random) -> tuple[str, int]:
    """Returns an expression of all numbers, without negative or fractional values on the way."""
    pool = [(str(number), number) for number in numbers]
    while len(pool) > 1:
        (left, x), (right, y) = (pool.pop(rng.randrange(len(pool))) for _ in range(2))
        if x < y:
            left, x, right, y = right, y, left, x
        results = {"+": x + y, "-": x - y, "*": x * y}
        if y > 1 and x % y == 0:
            results["/"] = x // y
        sign = rng.choice(list(results))
        text = f"{left} {sign} {right}"
        pool.append((f"({text})" if pool else text, results[sign]))
    return pool[0]


def _steps(expression: str) -> str:
    """Returns each operation with its result: `44 + 19 = 63, 63 + 35 = 98`."""
    numbers, program = parse(expression)
    values: list[int | Fraction] = list(numbers)
    written = []
    for operation, place, other in program:
        result = run(((operation, 0, 1),), [values[place], values[other]])  # type: ignore[list-item]
        sign = _SIGNS.get(operation, "/")
        written.append(f"{_shown(values[place])} {sign} {_shown(values[other])} = {result}")
        values[place] = result
    return ", ".join(written)


def _shown(value: int | Fraction) -> str:
    return str(value) if value.denominator == 1 and value >= 0 else f"({value})"
