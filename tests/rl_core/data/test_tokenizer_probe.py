"""ATTACKS by a tokenizer of some kilobytes or its chat template: memory, hours, a dead process."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.data import tokenizer_probe
from rl_core.data.prompts import load_tokenizer
from rl_core.data.tokenizer_probe import why_unusable
from rl_core.sft.train import train_tokenizer


@pytest.fixture
def folder(tiny_model_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model_path, tmp_path / "model"))


def change(folder: Path, **parts: Any) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | parts))


def refused(folder: Path) -> str:
    with pytest.raises(ValueError, match=r"^model\.path=[^\n]*: [^\n]*: [^\n]*$") as caught:
        load_tokenizer(str(folder))
    return str(caught.value)


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def normalizers(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"normalizer": {"type": "Sequence", "normalizers": list(steps)}}


BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
GROWS = "tokenizer.json makes a text more than 1,000 times as long"


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (normalizers(*[replace("a", "a" * 10)] * 12), GROWS),  # 10^12 letters: SIGABRT
        (normalizers(*[replace("", "a", "Regex")] * 40), GROWS),
        (normalizers(*[replace("a", "a" * 30)] * 2), "tokens of 75 letters"),
        (
            {"decoder": {"type": "Sequence", "decoders": [BYTES, *[replace("a", "a" * 10)] * 12]}},
            GROWS,
        ),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}},
            "index out of bounds",  # Rust panics
        ),
        (
            {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/" * 22 + "8="}},
            "4 GiB or 20 s for a short text, or is damaged (killed by SIGABRT)",
        ),
        ({"normalizer": replace("(a|a)*(a|a)*$x|(a+)+$", " ", "Regex")}, "retry-limit-in-match"),
        ({"model": {"type": "BPE"}}, "tokenizer.json cannot be read (Missing vocab/merges"),
        ({"added_tokens": "none"}, "tokenizer.json cannot be read ("),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else next(iter(value)),
)
def test_a_hostile_tokenizer_is_refused_in_one_line(parts, words, folder):
    change(folder, **parts)
    assert words in refused(folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 200_000, "tokenizer.json is no JSON object (too many brackets)"),
        (
            '{"normalizer": ' + '{"type": "Sequence", "normalizers": [' * 400,
            "tokenizer.json is no JSON object",
        ),
        (
            '{"normalizer": '
            + '{"type": "Sequence", "normalizers": [' * 300
            + "]}" * 300
            + ', "model": {}}',
            "tokenizer.json cannot be read (recursion limit exceeded",
        ),
    ],
)
def test_brackets_are_refused(text, words, folder):
    (folder / "tokenizer.json").write_text(text)
    assert words in refused(folder)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 'a' * 10**10 }}", "the chat template takes more than 4 GiB or 20 s"),
        ("{{ 'a' * 10**7 }}", "the chat template makes 10,000,000 letters of"),
        ("{{ 'a' * 10**7 if tools }}", "the chat template makes 10,000,000 letters of"),
    ],
)
@pytest.mark.parametrize("place", ["file", "settings", "named"])
def test_a_template_that_takes_all_memory_is_refused(template, words, place, folder):
    if place == "file":
        (folder / "chat_template.jinja").write_text(template)
    else:
        named = [{"name": "default", "template": template}]
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["chat_template"] = template if place == "settings" else named
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert words in refused(folder)


@pytest.mark.slow
def test_a_template_without_end_is_refused(folder, monkeypatch):
    monkeypatch.setattr(tokenizer_probe, "_MOST_CPU_S", 3)
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    (folder / "chat_template.jinja").write_text(loop)
    assert "the chat template takes more than 4 GiB or 20 s" in refused(folder)


Settings = dict[str, Any]


@pytest.mark.parametrize(
    ("change_settings", "words"),
    [
        (lambda s: s.update(added_tokens_decoder={"x": 3}), "transformers reads no tokenizer from"),
        (lambda s: s.update(fast_tokenizer_files=["tokenizer.9.json"]), "fast_tokenizer_files"),
        (lambda s: s.update(eos_token={"content": []}), "transformers reads no tokenizer from"),
    ],
)
def test_settings_that_only_transformers_stumbles_over_are_one_line(
    change_settings: Callable[[Settings], object], words, folder
):
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    change_settings(settings)
    file.write_text(json.dumps(settings))
    assert words in refused(folder)


def test_sound_tokenizers_pass_and_are_tried_once(folder, tmp_path, monkeypatch):
    change(folder, **normalizers({"type": "NFC"}, {"type": "Prepend", "prepend": "_"}))
    assert why_unusable(folder) is None
    train_tokenizer(["3 + 15 = 18 no"], vocab_size=300).save_pretrained(tmp_path / "made")
    assert why_unusable(tmp_path / "made") is None
    monkeypatch.setattr("rl_core.data.tokenizer_probe.Child", None)
    assert why_unusable(folder) is None
    (tmp_path / "made" / "tokenizer.json").unlink()
    with pytest.raises(TypeError):  # other files: it is tried anew
        why_unusable(tmp_path / "made")
