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


CHAT = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"


@pytest.mark.parametrize(
    ("truth", "prompt", "line"),
    [
        ("東京", "Which city?", "Which city? -> 東京"),
        ("two\nlines", "a\nb", "a b -> two lines"),
        (["a", 1], "", ' -> ["a", 1]'),
        ("long " * 40, "?", f"? -> {'long ' * 15}long…"),
        ("18", CHAT.format("What is 9 + 9?"), "What is 9 + 9? -> 18"),
        ("18", "<s>[INST] What is 9 + 9? [/INST]", "What is 9 + 9? -> 18"),
        ("18", "<start_of_turn>user\nWhat?<end_of_turn>\n<start_of_turn>model\n", "What? -> 18"),
        ({"numbers": [3, 4], "target": 7}, "Using the numbers ...", "3, 4 -> 7"),
    ],
)
def test_a_problem_in_words_has_its_question_and_its_answer(truth, prompt, line):
    assert problem_in_words(json.dumps(truth, ensure_ascii=False), prompt) == line


def test_problems_that_changed_hands_are_shown_with_both_answers(alpha_data):
    """Of four test problems the base solved the last, the trained model the first and third."""
    changes = alpha_data.shown["changes"]
    shown = [(one.is_won, one.before.verdict, one.after.verdict) for one in changes]
    won, lost = (True, "no_answer", "correct"), (False, "correct", "wrong_value")
    assert shown == [won, won, lost]
    assert changes[0].after.before.startswith("correct response")
