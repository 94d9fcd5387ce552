"""The parser against hand-written cases and against Python's own, which shares no code with it."""

import ast
import operator
import re
from fractions import Fraction
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rl_core.envs.countdown.scoring import ExpressionError, parse
from tests.support.solving import evaluate

TABLES = yaml.safe_load(Path(__file__).with_name("arithmetic.yaml").read_text())


def outcome(text: str) -> Fraction | str:
    try:
        return evaluate(text)
    except ExpressionError as error:
        return str(error)


@pytest.mark.parametrize(("text", "value"), TABLES["values"])
def test_values(text, value):
    assert evaluate(text) == Fraction(value)


@pytest.mark.parametrize("text", TABLES["bad-syntax"])
def test_bad_syntax(text):
    assert outcome(text) == "bad_syntax"


@pytest.mark.parametrize("text", ["1 / 0", "1 / (2 - 2)", "0 / 0", "5 / (3 * (4 - 4))", "1/(0/5)"])
def test_division_by_zero(text):
    assert outcome(text) == "division_by_zero"


def test_length_limit_is_256_characters():
    assert evaluate("1" + "+1" * 127 + " ") == 128
    assert outcome("1" + "+1" * 128) == "too_long"
    assert outcome("?" * 257) == "too_long", "length is judged before anything is read"
    assert outcome("?" * 256) == "bad_syntax"


def test_depth_limit_is_32_parentheses():
    assert evaluate("(" * 32 + "7" + ")" * 32) == 7
    assert outcome("(" * 33 + "7" + ")" * 33) == "too_long"
    assert evaluate("+".join(["(1)"] * 60)) == 60, "side by side is not deep"
    assert outcome("(" * 33) == "too_long"


def test_numbers_in_the_order_of_the_text():
    assert parse("-(12 - 3) * 12 + 100")[0] == [12, 3, 12, 100]


def oracle(text: str) -> Fraction | str:
    """The rules of the grammar through Python's parser: no shared code, and slow."""
    squeezed = re.sub(r"[ \t\n\r\f\v]", " ", text)
    bare = squeezed.replace(" ", "")
    if (
        not re.fullmatch(r"[0-9+\-*/() ]*", squeezed)
        or "**" in squeezed
        or "//" in squeezed
        or re.search(r"(?<![0-9])0[0-9]", squeezed)
        or re.search(r"[+\-*/]-", bare)
    ):
        return "bad_syntax"
    try:
        tree = ast.parse(squeezed.strip(), mode="eval").body
    except SyntaxError:
        return "bad_syntax"
    # The whole text is read before anything is computed: `0/0/+0` is bad syntax.
    if not all(isinstance(node, _ALLOWED) for node in ast.walk(tree)):
        return "bad_syntax"
    try:
        return walk(tree)
    except ZeroDivisionError:
        return "division_by_zero"


_SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
_SIGNS |= {ast.Div: operator.truediv}
_ALLOWED = (ast.Constant, ast.UnaryOp, ast.USub, ast.BinOp, *_SIGNS)


def walk(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp):
        return -walk(node.operand)
    assert isinstance(node, ast.BinOp)
    return _SIGNS[type(node.op)](walk(node.left), walk(node.right))


expressions = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", " - ", "*", " / "]), inner).map("".join),
        inner.map("({})".format),
        inner.map("(-{})".format),
    ),
    max_leaves=12,
)


@st.composite
def misspelt(draw: st.DrawFn) -> str:
    text = draw(expressions)
    place = draw(st.integers(0, len(text)))
    typo = draw(st.sampled_from(list("0+-*/() .,²a")))
    return text[:place] + typo + text[place + draw(st.integers(0, 1)) :]


@settings(max_examples=300)
@given(st.text("0123456789+-*/() \n", max_size=24) | expressions | misspelt())
@example("0/0/+0")
@example("1/0+5(3)")
@example("1/0+()")
def test_any_text_agrees_with_python(text):
    assert outcome(text) == oracle(text)
