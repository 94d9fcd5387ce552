"""The package's scoring of a response, as a reward function (data path stage 4).

Runs in reward workers. Nothing of what a model wrote is executed: scorers that would do so are
replaced, and each response is scored in a sealed process, which ends with it. Of version 0.1.25 all
scorers that run what a model, or a file, says have one here, and one that takes any answer. Each
gives what the package's scorer gives, or less.

Formulas are read without sympy's parser, which runs them as Python: numbers, names, + - * / **, and
functions of the list below; all else is refused. Every number stays small, whatever the powers, so
that no text takes long to read.
"""

import ast
import json
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache, partial
from typing import Any, Final

import sympy
from sympy.polys.monomials import MonomialOps

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.reasoning_gym import INSTALL
from rl_core.envs.reasoning_gym.problems import from_json, with_enums
from rl_core.envs.rows import find_answer
from rl_core.system.sealed import TooSlow, sealed

try:
    from reasoning_gym.factory import DATASETS, create_dataset
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(INSTALL) from error

Truth = Mapping[str, Any]

LONGEST_ANSWER: Final = 10_000
"""Characters; a longer answer is wrong."""
_CPU_S: Final = 1.0
"""Of one response: honest answers take milliseconds, a hard integral a few tenths."""

_ABSURD: Final = re.compile(r"(?<![a-z])(nan|inf(inity)?)[ij]?(?![a-z])|\de[+-]?[\d_]{4,}", re.I)
"""No number, which compares as equal to any in some scorers, or one that takes seconds to read."""

_MOST_DIGITS: Final = 1_000
_LARGEST_EXPONENT: Final = 1_000
_LARGEST_OF_A_SUM: Final = 50
"""To multiply out a larger power of a sum takes seconds."""
_FUNCTIONS: Final = {
    name: getattr(sympy, name)
    for name in (
        *("exp", "log", "ln", "sqrt", "cbrt", "Abs", "sign"),
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot"),
        *("sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    )
}
_CONSTANTS: Final = {"E": sympy.E, "pi": sympy.pi, "I": sympy.I}
_OPERATORS: Final[dict[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
GENERATORS: Final = (MonomialOps._build.__code__,)
"""Where sympy runs code that it wrote itself, from the number of a polynomial's variables."""


def compute_score(
    data_source: str, solution_str: str, ground_truth: Mapping[str, Any], extra_info: Any = None
) -> dict[str, Any]:
    """Returns the package's score of the answer in tags, from 0 to 1; only 1 is correct.

    `NotSealed` is raised if scoring it would have done more than compute.
    """
    answer = find_answer(solution_str, "anywhere").strip()
    if not answer:
        return {"score": 0.0, "acc": False, "pred": None}
    wrong = {"score": 0.0, "acc": False, "pred": answer}
    # No finite number, unless the right answer is none either.
    if len(answer) > LONGEST_ANSWER or (
        _ABSURD.search(answer) and not _ABSURD.search(str(ground_truth["answer"]))
    ):
        return wrong
    task = _open_task(ground_truth["task"], json.dumps(ground_truth["config"], sort_keys=True))
    try:
        score = sealed(
            partial(score_answer, task, answer, ground_truth), cpu_s=_CPU_S, generators=GENERATORS
        )
    except TooSlow:
        return wrong
    if not 0 <= score <= 1:  # some formulas of theirs leave the range where an answer is far off
        return wrong
    return {"score": score, "acc": score >= 1, "pred": answer}


@lru_cache(64)
def _open_task(name: str, config: str) -> Any:
    if name.endswith(("_integration", "_multiplication")):
        # Loads what sympy loads when it first simplifies, once and not in each sealed process.
        x = sympy.Symbol("x")
        sympy.simplify(sympy.diff(sympy.exp(x) * sympy.sin(x) / x, x) - (x + 1) ** 2)
    settings = with_enums(from_json(json.loads(config)), DATASETS[name][1])
    return create_dataset(name, **settings, seed=0, size=1)


def score_answer(task: Any, answer: str, truth: Truth) -> float:
    """Returns what our scorer of a task, else the package's, gives an answer without its tags."""
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


def read_expression(text: str, *, has_integrals: bool = False) -> Any:
    """Returns the formula that any text is; `has_integrals` allows `Integral(formula, x)` in it.

    Raises ValueError, or an error of Python's parser, if it is none or too large.
    """
    if "Integral" in text and not has_integrals:
        raise ValueError("an integral is no answer")
    return _build(ast.parse(text.strip(), mode="eval").body)


def _build(node: ast.AST) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _number(number)
        case ast.Name(id=name):
            return _CONSTANTS[name] if name in _CONSTANTS else sympy.Symbol(name)
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_build(operand))
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return _power(_build(base), _build(exponent))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_build(left), _build(right))
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](_build(argument))
        case ast.Call(func=ast.Name(id="Integral"), args=[inner, ast.Name(id=name)], keywords=[]):
            return sympy.Integral(_build(inner), sympy.Symbol(name))
    raise ValueError(f"{type(node).__name__} is no part of a formula")


def _number(number: float) -> Any:
    if not math.isfinite(number):
        raise ValueError(f"{number} is no number")
    return sympy.Integer(number) if isinstance(number, int) else sympy.Float(number)


def _power(base: Any, exponent: Any) -> Any:
    """Returns base**exponent if it is of moderate size, before it is computed."""
    if exponent.is_number:
        size = abs(float(exponent))
        digits = abs(math.log10(abs(float(base)))) if base.is_number and base else 0.0
        if (
            size > (_LARGEST_OF_A_SUM if base.is_Add else _LARGEST_EXPONENT)
            or size * digits > _MOST_DIGITS
        ):
            raise ValueError("too large a power")
    return base**exponent


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
