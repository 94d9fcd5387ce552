import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rl_core.evaluation.rows import write_rows
from rl_core.runs.run_folder import RunFolder
from tasks.report import write_report
from tasks.report_page.samples import Story, cut_around_answer, stories

Row = dict[str, Any]


@pytest.mark.parametrize(
    ("response", "answer", "parts"),
    [
        ("a <answer>1 + 2</answer>", "1 + 2", ("a <answer>", "1 + 2", "</answer>")),
        (
            "<answer>1</answer> no <answer> 2 </answer> 2",
            "2",
            ("<answer>1</answer> no <answer>", " 2 ", "</answer> 2"),
        ),
        ("so 18 and 18 #### 18.", "18", ("so 18 and 18 #### ", "18", ".")),
        ("<answer>never closed", None, ("<answer>never closed", "", "")),
        ("the answer lies elsewhere", "7", ("the answer lies elsewhere", "", "")),
    ],
)
def test_response_is_cut_around_the_scored_answer(response, answer, parts):
    assert cut_around_answer(response, answer) == parts


@given(st.text(alphabet="<answer>/ 12", max_size=80), st.none() | st.text(max_size=3))
@example("</answer><answer>", "1")
def test_cutting_loses_nothing_of_a_short_response(response, answer):
    assert "".join(cut_around_answer(response, answer)) == response


def test_long_responses_are_shortened_around_the_answer():
    before, answer, after = cut_around_answer(
        "x" * 50_000 + "<answer>1</answer>" + "y" * 50_000, "1"
    )
    assert answer == "1"
    assert before.endswith("xxx<answer>")
    assert after.startswith("</answer>yyy")
    assert 3_000 < len(before) + len(after) < 10_000


def test_an_excerpt_is_as_long_as_asked():
    assert cut_around_answer("abcdefgh 12 ijklmnop", "12", longest=3) == ("gh ", "12", " ij")


def keep(run: Path, step: int, verdicts: dict[int, str]) -> None:
    """Writes one test of training: a verdict per held-out problem."""
    rows: list[Row] = [
        {
            "run_id": run.name,
            "model": "any",
            "step": step,
            "prompt_index": problem,
            "mode": "greedy",
            "sample_index": 0,
            "prompt": f"<b>problem {problem}</b>",
            "response": f"at {step}: <answer>{problem} + {step}</answer>",
            "answer": None if verdict == "no_answer" else f"{problem} + {step}",
            "verdict": verdict,
            "score": 0.0,
            "ground_truth": json.dumps({"numbers": [problem, 7], "target": 9}),
        }
        for problem, verdict in verdicts.items()
    ]
    write_rows(rows, run / "held_out" / f"step_{step:06d}.parquet")


def brief(story: Story) -> tuple[str, str, list[tuple[int, str]], int, int]:
    shown = [(test.step, test.verdict) for test in story.tests]
    return story.title, story.problem, shown, story.num_correct, story.num_tests


def test_problems_are_followed_from_test_to_test(two_runs):
    run = two_runs / "runs" / "alpha"
    yes, wrong, none = "correct", "wrong_value", "no_answer"
    series = {
        0: (none, wrong, wrong, wrong, yes),  # right in the end: two of these, the second sooner
        1: (wrong, wrong, yes, yes, yes),
        2: (none, none, none, none, none),  # never right: the second came nearer
        3: (none, wrong, wrong, wrong, wrong),
        4: (yes, wrong, yes, none, wrong),  # forgotten, and its middle is too long to show
        5: (yes, yes, yes, yes, yes),  # nothing to tell
    }
    for i, step in enumerate((0, 10, 20, 30, 40)):
        keep(run, step, {problem: verdicts[i] for problem, verdicts in series.items()})
    assert [brief(story) for story in stories(RunFolder(run))] == [
        ("wrong at first, right at the end", "1, 7 -> 9", [(0, wrong), (20, yes), (40, yes)], 3, 5),
        (
            "right at first, wrong at the end",
            "4, 7 -> 9",
            [(0, yes), (10, wrong), (20, yes), (30, none), (40, wrong)],
            2,
            5,
        ),
        ("never right", "3, 7 -> 9", [(0, none), (10, wrong), (40, wrong)], 0, 5),
    ]
    page = write_report(run).html.read_text()
    assert 'at 20: &lt;answer&gt;<mark class="right">1 + 20</mark>&lt;/answer&gt;' in page
    assert 'at 40: &lt;answer&gt;<mark class="wrong">4 + 40</mark>&lt;/answer&gt;' in page
    assert "&lt;b&gt;problem 1&lt;/b&gt;" in page
    assert "3 of 5 tests right" in page


@pytest.mark.parametrize(
    ("truth", "said"),
    [
        ("東京", "the answer is 東京"),
        ("two\nlines", "the answer is two lines"),
        (["a", 1], 'the answer is ["a", 1]'),
        ("long " * 40, f"the answer is {'long ' * 15}long…"),
        ("18", "the answer is 18"),
    ],
)
def test_a_problem_in_words_is_told_by_its_answer(tmp_path, truth, said):
    row: Row = {"prompt_index": 0, "prompt": "?", "response": "", "answer": None, "score": 0.0}
    row |= {"verdict": "incorrect", "ground_truth": json.dumps(truth, ensure_ascii=False)}
    for step in (0, 1):
        write_rows([row | {"step": step}], tmp_path / "held_out" / f"step_{step:06d}.parquet")
    assert [story.problem for story in stories(RunFolder(tmp_path))] == [said]


def test_a_run_that_kept_no_tests_tells_of_its_evaluation(shared_runs):
    """Greedily: problem 0 and 2 were won, 3 was lost, 1 stayed wrong."""
    briefs = [brief(story) for story in stories(RunFolder(shared_runs / "runs" / "alpha"))]
    assert {problem for _, problem, *_ in briefs} == {'the answer is {"target": 10}'}
    told = [(title, *rest) for title, _, *rest in briefs]
    yes, wrong, none = "correct", "wrong_value", "no_answer"
    assert told == [
        ("wrong at first, right at the end", [(0, none), (3, yes)], 1, 2),
        ("right at first, wrong at the end", [(0, yes), (3, wrong)], 1, 2),
        ("never right", [(0, wrong), (3, wrong)], 0, 2),
    ]
    assert stories(RunFolder(shared_runs / "runs" / "beta")) == []
