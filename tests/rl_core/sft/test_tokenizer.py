import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from rl_core.envs.countdown.templates import render_messages
from rl_core.envs.countdown.traces import write_trace
from rl_core.sft.train import train_tokenizer


def texts(count: int) -> list[str]:
    rng = random.Random(0)
    result = []
    for _ in range(count):
        numbers, target = [rng.randint(1, 20) for _ in range(3)], rng.randint(10, 99)
        result.append(render_messages("base", numbers, target)[0]["content"])
        result.append(write_trace(numbers, target, give_up_prob=0.1, rng=rng).text)
    return result


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(texts(500), vocab_size=640)


@settings(deadline=None)
@given(st.text())
@example("héllo 12 345  no yes nothing\u0660 \ud7ff 🎉 1no\r\n\t</think>\n<answer>(1+2)*3</answer>")
def test_any_text_survives(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_and_verdicts_stand_alone(tokenizer):
    tokens = [tokenizer.decode([i]) for i in tokenizer.encode("\n44 9 -35 +53 : 5 3 +8 no *15 yes")]
    assert tokens == [
        *["\n", "4", "4", " ", "9", " -", "3", "5", " +", "5", "3", " : "],
        *["5", " ", "3", " +", "8", " no", " *", "1", "5", " yes"],
    ]
    for token in tokenizer.get_vocab():
        if any(character.isdigit() for character in token):
            assert len(token) == 1
    assert len(tokenizer.encode("</think>\n<answer>(")) == 1


def test_numbers_of_three_digits_at_most_can_be_a_token_each():
    tokenizer = train_tokenizer(texts(2_000), vocab_size=800, digits_per_token=3)
    text = "\n99 20 +119 -79 : 5 3 +8 no *15 no"
    tokens = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
    assert tokens == [
        *["\n", "99", " ", "20", " +", "119", " -", "79", " : "],
        *["5", " ", "3", " +", "8", " no", " *", "15", " no"],
    ]
    assert tokenizer.decode(tokenizer.encode("[1234, 56789]")) == "[1234, 56789]"


def test_a_named_word_stands_alone_with_its_space_and_not_inside_another():
    lines = [f"So {name} has 3 {thing}." for name in ("Ann", "Bo") for thing in ("pens", "cups")]
    tokenizer = train_tokenizer(lines * 20, vocab_size=400, words=["Ann", "Bo", "pens", "cups"])
    tokens = [
        tokenizer.decode([i]) for i in tokenizer.encode("So Bo has 3 pens. Ann spends 3 cups.")
    ]
    assert tokens[:7] == ["So", " Bo", " has ", "3", " pens", ".", " Ann"]
    assert " pens" not in tokens[7:]
    assert tokens[-3:] == ["3", " cups", "."]
