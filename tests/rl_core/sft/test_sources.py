import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl_core.config.run import RunConfig
from rl_core.data.dataset import write_dataset
from rl_core.rollout.model_files import stop_token_ids
from rl_core.sft.named_data import check_rows, check_sft, planned_sft_steps
from rl_core.sft.sources import SftSource, sft_source
from tests.support.own_data import write_rows
from tests.support.runs import run_config

CHAT = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"


def config_of(file: Path | str, **changes: object) -> RunConfig:
    sft = {"data": str(file), "batch_size": 2} | changes
    return run_config(model={"path": "any"}, sft=sft)


@pytest.fixture
def tokenizer(tiny_model_path: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_model_path)


def source_of(
    tokenizer: PreTrainedTokenizerBase, folder: Path, *rows: object, **changes: object
) -> SftSource:
    return sft_source(
        config_of(write_rows(folder / "rows.jsonl", rows), **changes), tokenizer, folder
    )


def test_only_the_response_and_its_end_are_learned(tokenizer, tmp_path):
    source = source_of(tokenizer, tmp_path, *[{"prompt": "2+2=", "response": "4!"}] * 2)
    (example,) = source.held_out
    assert tokenizer.decode(example.ids) == "2+2=4!<|endoftext|>"
    assert example.weights == [0.0] * 4 + [1.0] * 3


def test_messages_are_written_by_the_chat_template(tokenizer, tmp_path):
    tokenizer.chat_template = CHAT
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "yes?"},
        {"role": "user", "content": "2+2"},
    ]
    answer = {"role": "assistant", "content": "4"}
    rows = [{"messages": [*messages, answer]}, {"prompt": messages, "response": "4"}]
    source = source_of(tokenizer, tmp_path, *rows)
    (first, *_), (held_out,) = source.draw(0), source.held_out
    assert first == held_out
    assert tokenizer.decode(first.ids) == (
        "[user]hi\n[assistant]yes?\n[user]2+2\n[assistant]4<|endoftext|>"
    )
    assert sum(first.weights) == 2


def test_a_turn_ends_as_the_template_ends_turns_not_as_texts_end(tiny_model_path, tmp_path):
    """As in Qwen's base models: `<|endoftext|>` ends texts, and turns end with `<|im_end|>`."""
    folder = shutil.copytree(tiny_model_path, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = "<|im_end|>"  # a token that the model has
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>"]})
    settings = folder / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"vocab_size": 300}))
    tokenizer.chat_template = CHAT.replace("]{{ m.content }}", "]{{ m.content }}<|im_end|>")
    tokenizer.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turn_end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert stop_token_ids(folder) == (1, turn_end)
    messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    chat = source_of(tokenizer, tmp_path, *[{"messages": messages}] * 2).held_out[0]
    raw = source_of(tokenizer, tmp_path, *[{"prompt": "2+2=", "response": "4"}] * 2).held_out[0]
    assert chat.ids[-1] == turn_end
    assert raw.ids[-1] == tokenizer.eos_token_id == 1
    tokenizer.eos_token = None
    without = source_of(tokenizer, tmp_path, *[{"prompt": "a", "response": "4"}] * 2)
    assert without.held_out[0].ids[-1] == 1


def test_each_pass_takes_every_row_once_in_an_order_of_its_own(tokenizer, tmp_path):
    rows = [{"prompt": "n", "response": str(n)} for n in range(10, 21)]
    source = source_of(tokenizer, tmp_path, *rows, batch_size=5)
    assert len(source.held_out) == 1
    assert source.num_steps == 4  # two epochs of ten rows

    def responses(*steps: int) -> list[str]:
        return [tokenizer.decode(e.ids[1:-1]) for step in steps for e in source.draw(step)]

    first, second = responses(0, 1), responses(2, 3)
    held_out = tokenizer.decode(source.held_out[0].ids[1:-1])
    assert sorted(first) == sorted(second) == sorted(set(map(str, range(10, 21))) - {held_out})
    assert first != second
    assert responses(1) == first[5:], "a step is the same whoever asks"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "2+2="}, r"row 2: response=None must be a text"),
        ({"prompt": "2+2=", "response": " "}, r"row 2: response=' ' must be a text"),
        ({"prompt": 4, "response": "4"}, r"row 2: prompt=4 must be a text"),
        ({"prompt": [{"role": "user"}], "response": "4"}, r"must be a list of \{role, content\}"),
        ({"messages": [{"role": "user", "content": "2"}]}, "must end with the assistant's"),
        (
            {"prompt": [{"role": "user", "content": "2"}], "response": "4"},
            "need a tokenizer with a chat template",
        ),
        ({"prompt": "2" * 90, "response": "4" * 9}, r"row 2: 100 tokens are above sft.max_length="),
    ],
)
def test_a_bad_row_is_refused_by_its_line_and_one_row_is_too_few(tokenizer, tmp_path, row, said):
    good = {"prompt": "2+2=", "response": "4"}
    with pytest.raises(ValueError, match=said):
        source_of(tokenizer, tmp_path, good, row, max_length=99)
    if "tokens are above" not in said and "a tokenizer" not in said:  # known without a model
        with pytest.raises(ValueError, match=said):
            check_rows(config(data=str(tmp_path / "rows.jsonl")), most=9)
    with pytest.raises(ValueError, match="has 1 rows: at least 2"):
        source_of(tokenizer, tmp_path, good)
    with pytest.raises(ValueError, match="has 1 rows: at least 2"):
        check_rows(config(data=str(tmp_path / "rows.jsonl")), most=9)


def traces(
    tokenizer: PreTrainedTokenizerBase, folder: Path, max_tokens: int, **sft: object
) -> SftSource:
    config = run_config(
        model={"path": "any"},
        sft={"data": "traces", "held_out": 3} | sft,
        data={
            "train_size": 40,
            "test_size": 8,
            "train_batch_size": 8,
            "max_response_length": max_tokens,
        },
        actor={"mini_batch_size": 8},
    )
    write_dataset(config.env, config.data, folder)
    return sft_source(config, tokenizer, folder)


def test_traces_follow_the_prompts_of_rollouts_within_their_length(tokenizer, tmp_path):
    source = traces(tokenizer, tmp_path, 300)
    examples = source.draw(0)
    assert examples == source.draw(0) != source.draw(1)
    assert len(source.held_out) == 3
    for example in examples:
        text = tokenizer.decode(example.ids)
        assert text.startswith("A conversation between User and Assistant.")
        assert re.search(r"step by step\.\n<think>\n\d", text)
        assert text.endswith("</answer><|endoftext|>")
        assert sum(example.weights) <= 300


def test_traces_that_cannot_fit_are_refused(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"max_response_length=20 tokens is too short"):
        traces(tokenizer, tmp_path, 20)


def test_traces_give_up_as_often_as_asked(tokenizer, tmp_path):
    examples = traces(tokenizer, tmp_path, 300, give_up_prob=1.0).draw(0)
    texts = [tokenizer.decode(example.ids) for example in examples]
    assert all(len(re.findall(" no| yes", text)) == 1 for text in texts)
    assert any(" no</think>" in text for text in texts)


def config(env: dict[str, Any] | None = None, **sft: Any) -> RunConfig:
    env = {"name": "countdown"} | (env or {})
    return run_config(model={"path": "x/y"}, env=env, sft=sft)


def steps(**sft: Any) -> int:
    return planned_sft_steps(config(**sft))


def test_steps_are_known_before_anything_is_read_as_tokens(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "response": "b"}\n' * 5)
    assert steps(data="traces") == 300
    assert steps(data="traces", steps=7) == steps(data=str(rows), steps=7) == 7
    assert steps(data=str(rows), epochs=2, batch_size=4) == 3  # 10 rows, the last 2 alone
    with pytest.raises(ValueError, match=r"none\.jsonl"):
        steps(data=str(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("env", "data"), [("gsm8k", "traces"), ("countdown", "rows.jsonl")], ids=["no-search", "file"]
)
def test_giving_up_is_of_traces_that_search(tmp_path, monkeypatch, env, data):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n')
    check_sft(config({"name": env}, data=data))
    with pytest.raises(ValueError, match=r"sft\.give_up_prob=0\.4 is of traces that search"):
        check_sft(config({"name": env}, data=data, give_up_prob=0.4))


def test_searches_are_of_three_or_four_numbers():
    with pytest.raises(ValueError, match=r"Countdown with 3 or 4 numbers: env=countdown env\.min_"):
        check_sft(config({"max_operands": 5}, data="traces"))
