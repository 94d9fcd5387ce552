"""Scorers of our own for tasks whose scorer in the package runs what a model, or a file, says.

Of version 0.1.25 all tasks that do so, and one that takes any answer. Each gives what the package's
scorer gives, or less.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, Final

import sympy
from sympy.polys.monomials import MonomialOps

from rl_core.envs.countdown import score_response
from rl_core.envs.reasoning_gym.expressions import read_expression
from rl_core.envs.reasoning_gym.typed_json import from_json

Truth = Mapping[str, Any]

_ABSURD: Final = re.compile(r"(?<![a-z])(nan|inf(inity)?)[ij]?(?![a-z])|\de[+-]?[\d_]{4,}", re.I)
"""No number, which compares as equal to any in some scorers, or one that takes seconds to read."""


GENERATORS: Final = (MonomialOps._build.__code__,)
"""Where sympy runs code that it wrote itself, from the number of a polynomial's variables."""


def is_absurd(answer: str, truth: Truth) -> bool:
    """Says whether an answer holds no finite number where the right one does not either."""
    return bool(_ABSURD.search(answer)) and not _ABSURD.search(str(truth["answer"]))


def load_sympy() -> None:
    """Loads what sympy loads when it first simplifies, once instead of in each sealed process."""
    x = sympy.Symbol("x")
    sympy.simplify(sympy.diff(sympy.exp(x) * sympy.sin(x) / x, x) - (x + 1) ** 2)


def score_answer(task: Any, answer: str, truth: Truth) -> float:
    """Returns what our scorer of a task, else the package's, gives an answer.

    Args:
        task: the package's data set.
        answer: without its tags.
        truth: as it lies in the data set's file.
    """
    plain = from_json(truth)
    if own := _OWN_SCORERS.get(truth["task"]):
        return own(answer, plain)
    return float(task.score_answer(answer, plain))


def _numbers_game(answer: str, truth: Truth, *, readable: float, unreadable: float) -> float:
    """Scores with Countdown's exact parser: the given numbers, each once."""
    metadata = truth["metadata"]
    verdict = score_response(
        f"<answer>{answer}</answer>", metadata["numbers"], metadata.get("target", 24)
    ).verdict
    if verdict == "correct":
        return 1.0
    return readable if verdict in ("wrong_value", "wrong_numbers") else unreadable


def _integral(answer: str, truth: Truth) -> float:
    """Says whether the derivative is the integrand.

    Some answers of the package hold integrals; elsewhere one would only repeat the question.
    """
    metadata = truth["metadata"]
    formula = read_expression(answer, has_integrals="Integral" in truth["answer"])
    derivative = sympy.diff(formula, sympy.Symbol(metadata["variable"]))
    return float(sympy.simplify(derivative - read_expression(metadata["integrand"])) == 0)


def _polynomial(answer: str, truth: Truth) -> float:
    return float(bool(read_expression(answer) == read_expression(truth["answer"])))


def _listed(
    answer: str,
    truth: Truth,
    *,
    credit: float,
    write: Callable[[Any], str],
    right: Callable[[Truth], Collection[str]] = lambda truth: (truth["answer"].strip(),),
) -> float:
    """Scores a text, or with less credit a Python list of its parts."""
    if answer in right(truth):
        return 1.0
    return credit if write(ast.literal_eval(answer)) in right(truth) else 0.0


def _lines(rows: Any) -> str:
    return "\n".join(" ".join(str(cell) for cell in row) for row in rows)


def _bitwise(answer: str, truth: Truth) -> float:
    return float(int(answer, 0) == int(truth["answer"], 0))


def _number_sorting(answer: str, truth: Truth) -> float:
    read = json.loads(answer.replace("'", '"'))
    if not isinstance(read, list):
        return 0.0
    said = [float(number) for number in read]
    right = [float(number) for number in ast.literal_eval(truth["answer"])]
    is_sorted = said == sorted(said, reverse=truth["metadata"]["direction"] != "ascending")
    is_near = all(abs(a - b) <= 1 for a, b in zip(said, right, strict=True))
    return float(is_sorted and is_near)


def _same_word(answer: str, truth: Truth) -> float:
    """The package takes any answer at all, since any text counts as true."""
    return float(answer.casefold() == truth["answer"].casefold())


_OWN_SCORERS: Final[Mapping[str, Callable[[str, Truth], float]]] = {
    "countdown": partial(_numbers_game, readable=0.05, unreadable=0.01),
    "puzzle24": partial(_numbers_game, readable=0.01, unreadable=0.01),
    "simple_integration": _integral,
    "intermediate_integration": _integral,
    "polynomial_multiplication": _polynomial,
    "string_insertion": partial(_listed, credit=0.1, write="".join),
    "spiral_matrix": partial(_listed, credit=0.1, write=lambda items: " ".join(map(str, items))),
    "binary_matrix": partial(_listed, credit=0.1, write=_lines),
    "n_queens": partial(
        _listed, credit=0.5, write=_lines, right=lambda truth: truth["metadata"]["valid_answers"]
    ),
    "bitwise_arithmetic": _bitwise,
    "number_sorting": _number_sorting,
    "game_of_life_halting": _same_word,
}
"""By task: (answer, truth) -> score, or what a parser raises, which scores 0."""
