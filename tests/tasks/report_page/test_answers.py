"""Some right and some wrong answers of an evaluation, harmless wherever they are shown."""

import re
from pathlib import Path
from typing import Any

import pytest

from flows.evaluate import render
from rl_core.envs.custom import Custom
from rl_core.evaluation.rows import label_rows
from rl_core.evaluation.summary import summarise
from rl_core.types import Problem
from tasks.evaluate import Evaluated
from tasks.report_page.page import write_page
from tasks.report_page.samples import Answers, as_markdown, as_table, choose_answers
from tests.rl_core.evaluation.test_summary import row
from tests.tasks.conftest import HOSTILE
from tests.tasks.report_page.test_browser import text_of

STEERING = "\x1b[2J\u202e"
VERDICTS = ["correct", "wrong_value", "wrong_value", "no_answer", "correct", "correct", "correct"]


def asked(num_problems: int) -> list[Problem]:
    truth = {"numbers": [19, 11, 9], "target": 39}
    return [Problem(i, "countdown", (), truth, 1) for i in range(num_problems)]


def rows(*, answer: str | None = None) -> list[dict[str, Any]]:
    """A row per verdict; with `answer`, all are that text and nothing else."""
    made = []
    for i, verdict in enumerate(VERDICTS):
        own = answer or (None if verdict == "no_answer" else f"{i} + {i}")
        response = f"first\nthen <answer>{own}</answer>" if own else "first\nthen nothing"
        shown = {"prompt": f"prompt {i}", "response": response, "answer": own}
        made.append(row(i, verdict) | shown | {"response_tokens": 7 + i})
    of = {"run_id": "r", "model": "step_000025", "step": 25, "evaluation": "7-problems-x"}
    return label_rows(made, **of, num_problems=7)


def chosen(*, most: int = 3, answer: str | None = None) -> Answers:
    return choose_answers(rows(answer=answer), asked(7), most=most)


def test_right_ones_in_order_and_wrong_ones_of_each_kind_in_turn():
    answers = chosen()
    assert (answers.name, answers.num_right) == ("r/step_000025", 4)
    assert answers.verdicts == {"correct": 4, "wrong_value": 2, "no_answer": 1}
    assert [shown.prompt for shown in answers.right] == ["prompt 0", "prompt 4", "prompt 5"]
    wrong = [(shown.prompt, shown.verdict) for shown in answers.wrong]
    assert wrong == [
        ("prompt 1", "wrong_value"),
        ("prompt 3", "no_answer"),
        ("prompt 2", "wrong_value"),
    ]


def test_the_terminal_shows_problem_answer_and_verdict_in_a_line_each():
    summary = summarise(rows())
    evaluated = Evaluated(
        (summary,), (Path("a.parquet"),), None, (chosen(most=2),), (Path("a.html"),)
    )
    lines = [line.split("  ") for line in render(evaluated, ["r/step_000025"]).splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    start = cells.index(["r/step_000025: 4 of 7 right"])
    assert cells[start + 1 :] == [
        ["verdict", "problem", "answer", "tokens"],
        ["correct", "19, 11, 9 -> 39", "0 + 0", "7"],
        ["correct", "19, 11, 9 -> 39", "4 + 4", "11"],
        ["wrong_value", "19, 11, 9 -> 39", "1 + 1", "8"],
        ["no_answer", "19, 11, 9 -> 39", "... first then nothing", "10"],
        [],
        ["rows: a.parquet"],
        ["right and wrong answers: a.html"],
    ]


GCD = {"task": "gcd", "config": {}, "question": "gcd of 8, 12?", "answer": "4", "metadata": 1}


@pytest.mark.parametrize(
    ("template", "question", "truth", "said"),
    [
        ("base", "how many? " * 99, "18", r"(how many\? ?)+ \[\.\.\.\] .* -> 18"),
        ("base", "Capital of 日本?", "東京", "Capital of 日本\\? -> 東京"),
        ("base", "Capital of 日本?", ["a", "b"], r'Capital of 日本\? -> \["a", "b"\]'),
        ("base", "Capital of 日本?", "x " * 99, r"Capital of 日本\? -> x x.*"),
        ("chat", "gcd of 8, 12?", GCD, r"gcd of 8, 12\? -> 4"),
    ],
)
def test_a_question_in_words_is_short_and_without_its_template(template, question, truth, said):
    asked = tuple(Custom(prompt_template=template).prompt(question))
    one = choose_answers(rows()[:1], [Problem(0, "custom", asked, truth, 0)], most=1)
    (line,) = as_table(one)
    assert re.fullmatch(said, line["problem"])
    assert len(line["problem"]) < 90


def test_text_of_a_model_steers_no_terminal_and_breaks_out_of_no_markdown():
    answers = chosen(answer=f"{STEERING}[x](http://evil) {HOSTILE}")
    shown = "".join(line["answer"] for line in as_table(answers))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    markdown = as_markdown([answers], [Path("/a.html")])
    assert "## r/step_000025: 4 of 7 right" in markdown
    assert "### no_answer, 10 tokens" in markdown
    assert not re.search(r"(?<!\\)[<\[]", markdown)
    assert "\x1b" not in markdown


def test_the_page_holds_each_problem_and_no_markup_of_a_model(tmp_path):
    write_page(rows(answer=HOSTILE), asked(7), tmp_path / "rows.parquet")
    page = (tmp_path / "rows.html").read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", page) == []
    text = text_of(page)
    assert "Greedy accuracy on 7 held-out problems 0.571 95%: 0.250 to 0.842" in text
    assert "Right: 4 of 4" in text
    assert "Wrong: 3 of 3" in text
    assert [i.removeprefix("problem ") for i in re.findall(r'title="([^"]*)"', page)] == [
        f"{i}: {verdict}" for i, verdict in enumerate(VERDICTS)
    ]
