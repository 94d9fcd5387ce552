"""Rows of a user's own: any shape that says what is asked and what is right, and word for word."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rl_core.config.run import DataConfig
from rl_core.data.dataset import read_problems, write_dataset
from rl_core.envs.custom import Custom
from rl_core.rewards.scoring import start_rewards
from rl_core.types import Problem, ScoredText

TABLES = yaml.safe_load(Path(__file__).with_name("custom.yaml").read_text())
ASKED = [{"role": "user", "content": "Capital of France?"}]


def score(response: str, truth: Any, **settings: Any) -> ScoredText:
    return Custom(**settings).score(response, truth)


@pytest.mark.parametrize(("row", "truth", "content"), TABLES["rows"])
def test_a_row_says_what_is_asked_and_what_is_right(row, truth, content):
    problem = Custom.rows.read(Custom(), row)
    assert problem.truth == truth
    assert problem.prompt == [{"role": "user", "content": content}]


@pytest.mark.parametrize(("row", "said"), TABLES["refused"])
def test_what_is_missing_is_named(row, said):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        Custom.rows.read(Custom(), row)
    assert said in str(caught.value)


def test_a_conversation_wants_chat_tags():
    row = {"prompt": [{"role": "system", "content": "Be brief."}, *ASKED], "answer": "Paris"}
    assert len(Custom.rows.read(Custom(), row).prompt) == 2
    with pytest.raises(ValueError, match=r"use env\.prompt_template=chat"):
        Custom.rows.read(Custom(prompt_template="base"), row)


def test_truths_of_any_shape_come_back_as_they_were(tmp_path):
    truths = ["Paris", "42", 42, 1.5, True, {"city": "Paris", "also": [1, None]}, ["a", ["b"]]]
    rows = [{"prompt": f"Question {i}?", "answer": truth} for i, truth in enumerate(truths)]
    rows += [{"prompt": "Question  0?", "answer": "again"}]
    rows += [{"prompt": "Last?", "answer": "last", "data_source": "mine/last"}]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files = (str(tmp_path / "mine.jsonl"),)
    env = Custom()
    write_dataset(env, DataConfig(train_files=files, test_size=1), tmp_path / "made")
    train = read_problems(tmp_path / "made" / "train.parquet")
    assert [problem.ground_truth for problem in train] == truths  # and no question twice
    assert {problem.data_source for problem in train} == {"custom"}
    (test,) = read_problems(tmp_path / "made" / "test.parquet")
    assert (test.data_source, test.ground_truth) == ("mine/last", "last")


def test_answers_are_compared_word_for_word():
    right = ("Paris", " paris\n", "PARIS.", "\uff30\uff21\uff32\uff29\uff33", "Par\u0069s")
    for text in right:
        assert score(f"so <answer>{text}</answer>", "Paris").verdict == "correct"
    assert score("<answer>New   York</answer>", "new york").score == 1.0
    assert score("<answer>Lyon</answer>", "Paris", format_score=0.1) == ScoredText(
        0.1, "wrong_value", "Lyon", "lyon"
    )
    assert score("Paris", "Paris") == ScoredText(0.0, "no_answer", None)
    assert score("<answer> </answer>", "Paris").verdict == "no_answer"
    assert score("<answer>42</answer>", 42).verdict == "correct"
    assert score("<answer>true</answer>", truth=True).verdict == "correct"
    last = "<answer>Paris</answer>\nor so"
    assert score(last, "Paris", answer_from="last_line").verdict == "no_answer"
    assert score(last, "Paris").verdict == "correct"
    assert score(f"<answer>{'a' * 1_001}</answer>", "a" * 1_001).verdict == "wrong_value"


@given(st.text(), st.one_of(st.text(), st.integers(), st.lists(st.text())))
def test_any_text_has_a_score(response, truth):
    assert score(response, truth).score in (0.0, 1.0)


@pytest.mark.parametrize("template", ["chat", "base"])
def test_a_problem_is_shown_without_the_words_of_its_template(template):
    env = Custom.model_validate({"prompt_template": template})
    for row in ({"question": "Capital of 日本?"}, {"prompt": "Capital of 日本?"}):
        asked = env.rows.read(env, row | {"answer": "東京"}).prompt
        problem = Problem(0, "custom", tuple(asked), "東京", 0)
        assert env.show_problem(problem) == "Capital of 日本? (the answer is 東京)"


def test_a_function_gets_the_rows_own_truth_and_extra_info(tmp_path):
    """As of verl: the same function reads the same fields, whatever shape they have."""
    rows = [
        {"prompt": f"Q {i}?", "answer": ["x"], "extra_info": {"index": 70 + i, "solution": ["é"]}}
        for i in range(2)
    ]
    rows.insert(0, {"prompt": "Without?", "answer": {"city": "Paris"}})
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    env = Custom(reward="tests.support.user_rewards:as_mapping")
    data = DataConfig(train_files=(str(tmp_path / "mine.jsonl"),), test_size=1)
    write_dataset(env, data, tmp_path / "made")
    without, own = read_problems(tmp_path / "made" / "train.parquet")
    with start_rewards(env) as rewards:
        asked = [str(rewards.submit("", problem).result().answer) for problem in (without, own)]
    assert "{'city': 'Paris'}, 'extra_info': {'index': 0, 'num_solutions': 0}" in asked[0]
    assert "['x'], 'extra_info': {'index': 70, 'num_solutions': 0, 'solution': ['é']}" in asked[1]
