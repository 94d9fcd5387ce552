"""`countdown-train play`: a person writes, and reads prompts, replies and scores."""

import io
import re
from pathlib import Path

from rl_core.data.dataset import problems_in
from rl_core.envs import find_env
from tests.support.programs import python

TOOLS = "env=tests.support.calculator:Calculator"
CALL = '<tool_call>{"name": "multiply", "arguments": {"a": 6, "b": 7}}</tool_call>'


def test_a_person_answers_a_puzzle_and_sees_the_score(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("<answer>1</answer>\n\ntwo\nlines\n\n"))
    printed = cli("play", "env=countdown").out
    assert len(re.findall(r"Using the numbers", printed)) == 3
    verdicts = re.findall(r"^-- (.*)$", printed, re.MULTILINE)
    assert verdicts == ["wrong_numbers: 1, score 0.1", "no_answer, score 0"]
    assert printed.endswith("\n0 of 2 correct\n")
    assert not list(tmp_path.iterdir())


def test_a_person_calls_a_tool_and_goes_on(cli, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{CALL}\n\n{CALL[:-20]}\n\nIt is 42.\n\n"))
    printed = cli("play", TOOLS).out
    assert "multiply(a: int, b: int) -> int: Multiplies two numbers." in printed
    assert "\n[tool] 42\n" in printed
    assert "\n[tool] error: the call is no JSON\n" in printed
    assert printed.endswith(" of 1 correct\n")


def test_no_torch_is_loaded():
    code = "import sys, flows.cli.play; print({'torch', 'transformers'} & {*sys.modules})"
    assert python(code).stdout == "set()\n"


def test_the_calculator_of_the_docs_is_played(cli, tmp_path, monkeypatch):
    page = (Path(__file__).parents[3] / "docs" / "tools.md").read_text()
    (program,) = re.findall(r"```python\n(from rl_core.envs.*?)```", page, re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) <= 20
    (tmp_path / "calculator.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    env = find_env("calculator:Calculator")()
    tables = env.rows.make(env, train_size=16, test_size=16, seed=0)
    problems = problems_in(tables["test"], env.name)[:2]
    turns = [text for one in problems for text in (CALL, f"It is\n{one.ground_truth}")]
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{text}\n\n" for text in turns)))
    printed = cli("play", "env=calculator:Calculator", root=tmp_path / "root").out
    assert printed.count("-- correct, score 1") == 2
    assert printed.endswith("2 of 2 correct\n")
