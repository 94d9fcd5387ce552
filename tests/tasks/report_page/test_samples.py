import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.report_page.samples import cut_around_answer, problem_in_words


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
def test_a_problem_in_words_is_told_by_its_answer(truth, said):
    assert problem_in_words(json.dumps(truth, ensure_ascii=False)) == said
