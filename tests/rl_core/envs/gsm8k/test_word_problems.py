"""Toy word problems: right by recomputation, in GSM8K's form, unique, and the same for a seed."""

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.envs.numbers import extract_truth, score_response
from rl_core.envs.word_problems import LARGEST_VALUE, MAX_STEPS, generate_word_problems

_STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = <<(\d+)([-+*/])(\d+)=(\d+)>>(\d+) [a-z]+\.")
_NUMBER = re.compile(r"\d+")
WordProblem = dict[str, str]


@pytest.fixture(scope="module")
def problems() -> list[WordProblem]:
    return generate_word_problems(size=3_000, seed=0)


def steps_of(problem: WordProblem) -> list[tuple[int, str, int, int]]:
    """Each line of the solution as (left, sign, right, result); fails on a line of another form."""
    steps = []
    for line in problem["answer"].split("\n")[:-1]:
        found = _STEP.fullmatch(line)
        assert found, line
        left, sign, right, *annotation, result = found.groups()
        assert annotation == [left, sign, right, result]
        steps.append((int(left), sign, int(right), int(result)))
    return steps


def test_every_step_is_true_and_the_last_is_the_answer(problems):
    assert len({problem["question"] for problem in problems}) == len(problems)
    for problem in problems:
        assert re.fullmatch(r"[A-Z][A-Za-z0-9 ,.]+\?", problem["question"])
        steps = steps_of(problem)
        for left, sign, right, result in steps:
            if sign == "/":
                assert left == right * result
            else:
                assert result == {"+": left + right, "-": left - right, "*": left * right}[sign]
            assert 1 <= result <= LARGEST_VALUE
        assert extract_truth(problem["answer"]) == str(steps[-1][-1])
        assert problem["answer"].endswith(f"\n#### {steps[-1][-1]}")
        assert score_response(problem["answer"], str(steps[-1][-1])).verdict == "correct"


def test_every_number_is_in_the_story_or_was_calculated_before(problems):
    for problem in problems:
        known = [int(number) for number in _NUMBER.findall(problem["question"])]
        unused = Counter(known)
        for left, _, right, result in steps_of(problem):
            assert left in known
            assert right in known
            unused -= Counter([left, right])
            known.append(result)
        assert not unused, "a number of the story that no step needs"


def test_steps_are_as_often_one_as_two_or_three_and_use_all_signs(problems):
    lengths = Counter(len(steps_of(problem)) for problem in problems)
    assert set(lengths) == set(range(1, MAX_STEPS + 1))
    for length in lengths:
        assert lengths[length] == pytest.approx(1_000, abs=100)  # 4 standard deviations
    signs = Counter(sign for problem in problems for _, sign, _, _ in steps_of(problem))
    assert min(signs[sign] for sign in "+-*/") > 150


@settings(max_examples=10)
@given(st.integers(0, 2**40), st.integers(1, 60), st.integers(1, 60))
def test_a_seed_makes_the_same_problems_whatever_the_size(seed, size, longer):
    short = generate_word_problems(size=size, seed=seed)
    assert generate_word_problems(size=size + longer, seed=seed)[:size] == short
    assert generate_word_problems(size=size, seed=seed + 1) != short


def test_the_first_problems_of_seed_0_are_known():
    """Another sequence is another data set: raise `dataset.GENERATOR_VERSION` with this test."""
    first, second = generate_word_problems(size=2, seed=0)
    assert first == {
        "question": "Fay buys 6 boxes with 9 marbles in each box. She sells 7 of them. "
        "How many marbles does Fay have now?",
        "answer": "6 * 9 = <<6*9=54>>54 marbles.\n54 - 7 = <<54-7=47>>47 marbles.\n#### 47",
    }
    assert second["answer"] == "8 * 2 = <<8*2=16>>16 books.\n#### 16"
