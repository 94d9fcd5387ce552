"""Formulas of sympy from a text, without sympy's parser: that one runs it as Python.

Numbers, names, + - * / **, and functions of the list below; all else is refused. Every number stays
small, whatever the powers, so that no text takes long to read.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any, Final

import sympy

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


def read_expression(text: str, *, has_integrals: bool = False) -> Any:
    """Returns the formula that a text is.

    Args:
        text: any.
        has_integrals: whether `Integral(formula, x)` may stand in it.

    Raises:
        ValueError: it is none, or too large.
        SyntaxError: the same (of Python, as are RecursionError and MemoryError).
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
