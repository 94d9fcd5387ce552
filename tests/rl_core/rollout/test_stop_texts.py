"""Where a text ends that tokens spell in many ways: against the decoded text, token by token."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_core.data.prompts import load_tokenizer
from rl_core.rollout.hf_engine import StopTexts
from rl_core.sft.train import train_tokenizer

STOPS = ("</calc>", "?!")
TEXTS = ["<calc>3*7</calc>21", "a</calc>\n b>c</ ?!?! é?! <calc> x</calc>\n y>"] * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with merges across the end of a stop text."""
    folder = tmp_path_factory.mktemp("bpe")
    tokenizer = train_tokenizer(TEXTS, vocab_size=330)
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    assert any("</calc>Ċ" in token for token in tokenizer.get_vocab())
    return folder


@given(st.lists(st.sampled_from(["<", "/", "calc", "</calc", ">", ">\n", "?", "!", "é", "3"])))
def test_ends_are_those_of_the_text(folder, pieces):
    stops, tokenizer = StopTexts(folder, STOPS), load_tokenizer(str(folder))
    ids = list(itertools.chain.from_iterable(tokenizer.encode(piece) for piece in pieces))
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(ids[:end])
        is_end = any(stop in text for stop in STOPS)
        found = bool(stops.candidates(torch.tensor([ids[end - 1]]))) and stops.ends(ids[:end])
        assert found == is_end
        if is_end:
            return


def test_a_token_that_goes_on_behind_the_text_ends_it_too(folder):
    stops, tokenizer = StopTexts(folder, STOPS), load_tokenizer(str(folder))
    before, vocabulary = tokenizer.encode("3*7"), tokenizer.get_vocab()
    for token in (i for word, i in vocabulary.items() if "</calc>" in word):
        assert stops.candidates(torch.tensor([*before, token])) == [len(before)]
        assert stops.ends([*before, token])
    assert not stops.ends(before)
