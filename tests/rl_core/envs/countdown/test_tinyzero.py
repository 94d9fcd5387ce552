"""The reward beside TinyZero's published rules (benchmarks/peers/tinyzero.py), `last_line` mode."""

import re
import runpy
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rl_core.envs.countdown.scoring import score_response
from rl_core.envs.countdown.templates import render_messages

TABLES = yaml.safe_load(Path(__file__).with_name("tinyzero.yaml").read_text())

PEER = Path(__file__).parents[4] / "benchmarks" / "peers" / "tinyzero.py"


peer: Any = SimpleNamespace(**runpy.run_path(str(PEER)))


def tinyzero_score(response: str, numbers: list[int], target: int) -> float:
    prompt = render_messages("base", numbers, target)[0]["content"]
    score: float = peer.score(prompt + response, numbers, target)
    return score


class Difference(NamedTuple):
    """A response that both score, but not alike. docs/rewards.md has these rows."""

    what: str
    response: str
    numbers: list[int]
    target: int
    tinyzero: float
    ours: float
    verdict: str
    why: str


DIFFERENCES = [Difference(*row) for row in TABLES["differences"]]


@pytest.mark.parametrize("row", DIFFERENCES, ids=lambda row: row.what)
def test_each_deliberate_difference(row):
    scored = score_response(row.response, row.numbers, row.target, answer_from="last_line")
    assert (scored.score, scored.verdict) == (row.ours, row.verdict)
    assert tinyzero_score(row.response, row.numbers, row.target) == row.tinyzero
    assert row.ours != row.tinyzero


def test_the_table_of_the_docs_has_these_rows():
    lines = (PEER.parents[2] / "docs" / "rewards.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if "| TinyZero | here |" in line) + 2
    for row, line in zip(DIFFERENCES, lines[start:], strict=False):
        what, _, given_numbers, theirs, ours = map(str.strip, line.strip("|").split(" | "))
        assert given_numbers == f"{' '.join(map(str, row.numbers))}, {row.target}", what
        score, verdict = ours.split()
        assert (float(theirs), float(score)) == (row.tinyzero, row.ours), what
        assert verdict == f"`{row.verdict}`", what


expressions = st.recursive(
    st.integers(1, 99).map(str),
    lambda inner: st.tuples(
        inner, st.sampled_from([" + ", " - ", " * ", " / ", "+", "-", "*", "/"]), inner
    ).map(lambda parts: "(" + "".join(parts) + ")"),
    max_leaves=6,
)
answers = st.one_of(
    expressions,
    expressions.map(lambda text: text[1:-1] if text.startswith("(") else text),
    expressions.map(lambda text: f"{text} = 24"),
    st.sampled_from(["x + 1", "(1 + 2", "1 + ", "2 3", "I do not know", "5(3)", "1,000", "7 x 8"]),
)
frames = st.sampled_from(TABLES["frames"])


@given(answers, frames, st.integers(-1, 1), st.booleans())
def test_equal_on_ordinary_completions(answer, frame, off, drops):
    numbers = [int(digits) for digits in re.findall(r"\d+", answer)]
    value = peer.evaluate(answer)
    target = (0 if value is None else round(value)) + off
    response = frame.format(f"<answer> {answer} </answer>")
    given_numbers = numbers[1:] if drops else numbers
    ours = score_response(response, given_numbers, target, answer_from="last_line")
    theirs = tinyzero_score(response, given_numbers, target)
    if ours.value is not None and 0 < abs(Fraction(ours.value) - target) < 1e-4:
        return  # nearly right is another
    assert ours.score == theirs
