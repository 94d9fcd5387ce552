from collections.abc import Callable, Sequence
from functools import partial
from typing import get_args

import numpy as np
import polars as pl
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl_core.data.prompt_lengths import Messages, measure_all, measure_by_parts
from rl_core.data.prompts import count_tokens, encode_prompt
from rl_core.envs.countdown.templates import Template, render_messages
from rl_core.sft.train import train_tokenizer
from tests.rl_core.data.test_prompts import CHAT


def rows_of(template: Template, num_rows: int = 400) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    problems = [
        (rng.integers(1, 120, rng.integers(2, 7)).tolist(), int(rng.integers(1, 130)))
        for _ in range(num_rows)
    ]
    return pl.DataFrame(
        {
            "prompt": [render_messages(template, *problem) for problem in problems],
            "nums": [numbers for numbers, _ in problems],
            "target": [target for _, target in problems],
        }
    )


@pytest.fixture(scope="module")
def merging() -> PreTrainedTokenizerFast:
    """Byte-level BPE in which "5, 7" is one token: no prompt that holds it is a sum of parts."""
    merges = [("5", ","), ("5,", "Ġ"), ("5,Ġ", "7")]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|end|>", *alphabet, *("".join(merge) for merge in merges)]
    backend = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")


@pytest.fixture(scope="module")
def home_made() -> PreTrainedTokenizerFast:
    texts = [row[0]["content"] for row in rows_of("base", 200)["prompt"].to_list()]
    return train_tokenizer(texts, vocab_size=640)


def counter(tokenizer: PreTrainedTokenizerFast, *, chat: bool) -> Callable[..., list[int]]:
    tokenizer.chat_template = CHAT
    return partial(count_tokens, tokenizer=tokenizer, chat_template=chat)


@pytest.mark.parametrize("template", get_args(Template))
def test_sums_of_parts_equal_the_tokenizers_lengths_row_by_row(home_made, template):
    rows = rows_of(template)
    count = counter(home_made, chat=template == "chat")
    sums = measure_by_parts(rows, partial(render_messages, template), count, sample_rows=100)
    assert sums is not None
    assert len(set(sums.tolist())) > 10
    one_by_one = [
        len(encode_prompt(prompt, home_made, chat_template=template == "chat")[1])
        for prompt in rows["prompt"].to_list()
    ]
    assert sums.tolist() == one_by_one
    assert measure_all(rows["prompt"], count).tolist() == one_by_one


def test_a_tokenizer_that_merges_across_parts_is_found_out(merging):
    count = counter(merging, chat=False)
    rows = rows_of("base")
    assert measure_by_parts(rows, partial(render_messages, "base"), count) is None


def test_few_rows_that_break_the_sum_are_found_when_extreme():
    """The longest by parts is always compared, however few rows are drawn."""
    rows = rows_of("base")
    longest = max(range(rows.height), key=lambda i: (len(rows["prompt"][i][0]["content"]), -i))
    text = rows["prompt"][longest][0]["content"]

    def count(prompts: Sequence[Messages]) -> list[int]:
        return [len(p[0]["content"]) + (p[0]["content"] == text) for p in prompts]

    assert measure_by_parts(rows, partial(render_messages, "base"), count, sample_rows=1) is None


def test_every_number_and_target_is_compared_once():
    rows = rows_of("base")
    seen: list[str] = []

    def count(prompts: Sequence[Messages]) -> list[int]:
        seen.extend(p[0]["content"] for p in prompts)
        return [len(p[0]["content"]) for p in prompts]

    sums = measure_by_parts(rows, partial(render_messages, "base"), count, sample_rows=0)
    assert sums is not None
    compared = rows.filter(pl.Series([p[0]["content"] in seen for p in rows["prompt"]]))
    assert set(compared["nums"].explode()) == set(rows["nums"].explode())
    assert set(compared["target"]) == set(rows["target"])
