"""Examples of word problems: responses by hand, examples as a rollout sees them, a tiny model."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from rl_core.envs.gsm8k import Gsm8k
from rl_core.envs.numbers import score_response
from rl_core.envs.sft_examples import SftText
from rl_core.envs.word_problems import (
    SolutionExamples,
    check_annotations,
    generate_word_problems,
    write_response,
)
from rl_core.sft.train import draw_examples, train_tokenizer
from rl_core.types import Problem

SOLUTION = "6 * 9 = <<6*9=54>>54 pens.\n54 - 13 = <<54-13=41>>41 pens.\n#### 41"


class Draws(random.Random):
    """Draws the given numbers, then fails."""

    def __init__(self, *numbers: float) -> None:
        super().__init__(0)
        self.numbers = list(numbers)

    def random(self) -> float:
        return self.numbers.pop(0)


def some_pairs(count: int) -> list[tuple[str, str]]:
    env = Gsm8k(prompt_template="think")
    return [
        (env.prompt(problem["question"])[0]["content"], problem["answer"])
        for problem in generate_word_problems(size=count, seed=3)
    ]


def test_a_whole_solution_and_one_that_stops_after_its_first_step():
    whole = write_response(SOLUTION, Draws(0.5), stop_prob=0.5)
    assert whole == (
        "\n6 * 9 = <<6*9=54>>54 pens.\n54 - 13 = <<54-13=41>>41 pens.</think>\n#### 41"
    )
    cut = write_response(SOLUTION, Draws(0.49), stop_prob=0.5)
    assert cut == "\n6 * 9 = <<6*9=54>>54 pens.</think>\n#### 54"
    assert score_response(whole, "41").verdict == "correct"
    assert score_response(cut, "41").verdict == "wrong_value"

    # A line without an annotation is no place to stop.
    written = write_response("First think.\nThen 1,800.\n#### 1,800", Draws(), stop_prob=1.0)
    assert written == "\nFirst think.\nThen 1,800.</think>\n#### 1800"


@given(st.integers(0, 2**32), st.floats(0, 1))
def test_every_response_has_an_answer_and_a_whole_one_is_right(seed, stop_prob):
    (problem,) = generate_word_problems(size=1, seed=seed)
    truth = problem["answer"].rpartition("#### ")[2]
    response = write_response(problem["answer"], random.Random(seed), stop_prob=stop_prob)
    assert score_response(response, truth).verdict in ("correct", "wrong_value")
    assert all(check_annotations(response))
    whole = write_response(problem["answer"], random.Random(seed), stop_prob=0.0)
    assert score_response(whole, truth).verdict == "correct"
    assert whole.startswith(response.partition("</think>")[0])


def test_annotations_are_checked_by_what_they_say():
    text = "<<3+4=7>>7 <<3+4=8>>8 <<9-12=3>> <<6/4=1>> <<6/3=2>> <<6/0=1>> <<7*8=56>> <<7*=56>>"
    assert check_annotations(text) == [True, False, False, False, True, False, True]


def tokenizer_of(source: SolutionExamples, *, vocab_size: int = 800) -> PreTrainedTokenizerFast:
    texts = source.tokenizer_texts(random.Random(0))
    return train_tokenizer(texts, vocab_size=vocab_size, words=source.words)


def test_examples_are_a_rollouts_tokens_and_teach_the_response_alone():
    own = SolutionExamples(0.5, train=some_pairs(60), test=some_pairs(1))
    tokenizer = tokenizer_of(own, vocab_size=500)
    for example in draw_examples(own, tokenizer, 5, random.Random(1)):
        first = next(index for index, weight in enumerate(example.weights) if weight)
        prompt, response = example.ids[:first], example.ids[first:]
        assert tokenizer.decode(prompt) in [prompt for prompt, _ in own.train]
        assert prompt == tokenizer.encode(tokenizer.decode(prompt))
        assert response[-1] == tokenizer.eos_token_id
        assert tokenizer.decode(response[:-1]).startswith("\n")
        assert min(example.weights[first:]) > 0


def test_a_word_is_a_token_and_a_line_ends_with_one_whatever_it_counts():
    pairs = some_pairs(2_000)
    own = SolutionExamples(0.5, train=pairs, test=pairs[:1])
    tokenizer = tokenizer_of(own)
    ends = [tokenizer.encode(mark) for mark in own.marks]
    assert [len(ids) for ids in ends] == [1, 1]
    for prompt, solution in pairs[:100]:
        tokens = [tokenizer.decode([i]) for i in tokenizer.encode(prompt)]
        things = solution.partition("\n")[0].rpartition(" ")[2].removesuffix(".")
        assert things == "dollars" or f" {things}" in tokens
        whole = write_response(solution, Draws(*[1.0] * 9), stop_prob=0.0)
        ids = tokenizer.encode(whole)
        num_steps = len(check_annotations(whole))
        assert [ids.count(end) for (end,) in ends] == [num_steps - 1, 1]


def test_the_choice_to_stop_weighs_what_makes_its_chance_the_settings():
    own = SolutionExamples(0.55, train=some_pairs(1), test=some_pairs(1))
    go_on, stop = 7, 8
    weights = own.weigh(SftText("", "", False), [1, go_on, 2, go_on, 3, stop, 4], [go_on, stop])
    assert weights == pytest.approx([1, 0.5, 1, 0.5, 1, 1, 1])
    cut = own.weigh(SftText("", "", True), [1, go_on, 2, stop, 4], [go_on, stop])
    assert cut == pytest.approx([1, 0.5, 1, 5.5, 1])


def test_a_given_model_reads_solutions_without_annotations():
    solution = "12 + 5 = <<12+5=17>>17 pens.\n17 + 1 = <<17+1=18>>18.\n#### 1,800"
    body = "12 + 5 = 17 pens.\n17 + 1 = 18."
    problem = Problem(0, "", (), "1800", 0)
    for template, written in (
        ("chat", f"{body}\n#### 1800"),
        ("think", f"\n{body}</think>\n#### 1800"),
    ):
        env = Gsm8k(prompt_template=template)
        assert env.sft.write_trace(env, problem, solution, Draws(), 0.0) == written


def test_a_model_is_judged_by_its_answers_and_its_annotations():
    own = SolutionExamples(0.5, train=some_pairs(1), test=[("", "#### 41"), ("", "#### 7")])
    measured = own.judge(["<<6*9=54>>54 <<54-13=40>>40</think>\n#### 41", "so 7"])
    assert measured == {
        "format_share": 0.5,
        "arithmetic_share": 0.5,
        "accuracy": 0.5,
        "mean_steps": 1.0,
    }
    assert SolutionExamples.failed_gates(measured)[0] == "format_share is 0.500, below 0.9"
