"""Model folders of people: what preflight says of tokenizer, template, numbers and end token."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rl_core.config.run import RunConfig
from rl_core.rollout.hf_engine import HfEngine
from tasks.preflight_checks import Finding
from tasks.preflight_checks import model as module
from tasks.preflight_checks.model import model_findings

ROLES = (
    "{%- for m in messages %}{%- if m['role'] in ['system', 'user', 'assistant'] %}"
    "{{- '<|' + m['role'] + '|>' + m['content'] + '\\n' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


@pytest.fixture
def folder(tiny_model_path: Path, tmp_path: Path) -> Path:
    made = Path(shutil.copytree(tiny_model_path, tmp_path / "model"))
    (made / "chat_template.jinja").write_text(ROLES)
    return made


def rows(*roles: str) -> Iterator[str]:
    for n in range(12):
        texts = ["Put the number into <answer> </answer>."] * (len(roles) - 1) + [f"{n} + 3?"]
        messages = [{"role": r, "content": text} for r, text in zip(roles, texts, strict=True)]
        yield json.dumps({"prompt": messages, "answer": str(n + 3)})


def findings(folder: Path, *roles: str, **env: Any) -> list[Finding]:
    """What is found with rows of one's own, of these roles."""
    file = folder.parent / "rows.jsonl"
    file.write_text("\n".join(rows(*(roles or ("user",)))))
    config = RunConfig.model_validate(
        {
            "env": {"name": "custom", "prompt_template": "chat"} | env,
            "data": {"train_files": str(file), "test_size": 4},
            "model": {"path": str(folder)},
            "storage": {"root": folder.parent / "root"},
        }
    )
    return list(model_findings(config))


def change(file: Path, **values: Any) -> None:
    settings = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({k: v for k, v in (settings | values).items() if v != "away"}))


def test_a_sound_model_has_one_line(folder):
    (finding,) = findings(folder, "system", "user")
    assert str(finding) == (
        f"local folder {folder}; all its numbers are finite; responses end with <|endoftext|>"
    )


def no_end(folder: Path) -> None:
    change(folder / "tokenizer_config.json", eos_token="away")
    change(folder / "generation_config.json", eos_token_id="away")
    change(folder / "config.json", eos_token_id=None)


def end(value: object) -> Callable[[Path], None]:
    return lambda folder: change(folder / "generation_config.json", eos_token_id=value)


def not_a_number(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 17\n".encode()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (write("tokenizer.json", POINTER), "tokenizer.json is a pointer of Git LFS"),
        (write("tokenizer_config.json", POINTER), "tokenizer_config.json is a pointer of Git LFS"),
        (write("chat_template.jinja", POINTER), "chat_template.jinja is a pointer of Git LFS"),
        (write("tokenizer.json", b'{"model":'), "tokenizer.json is no JSON object"),
        (write("tokenizer.json", b"{}"), "tokenizer.json cannot be read"),
        (write("tokenizer_config.json", b"\xef\xbb\xbf{}"), "byte order mark"),
        (write("generation_config.json", b"["), "generation_config.json is no JSON object"),
        (write("chat_template.jinja", ROLES.encode("utf-16")), "chat_template.jinja is not UTF-8"),
        (write("chat_template.jinja", b"{{ messages[0].role + 1 }}"), "fails with TypeError"),
        (write("chat_template.jinja", b"{% for"), "chat template refuses a prompt"),
        (write("chat_template.jinja", b""), "env.prompt_template=chat needs a tokenizer with"),
        (no_end, "no token ends a text, since no eos_token_id stands in generation_config.json"),
        (end([]), "no token ends a text"),
        (end(258), "eos_token_id=258 in generation_config.json or config.json is none of the"),
        (end([1, -1]), "is none of the model's 258 tokens"),
        (end("<|im_end|>"), "is none of the model's 258 tokens"),
        (not_a_number, "model.norm.weight holds numbers that are not finite"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_the_run_would_find_later_is_fatal_here(spoil, words, folder):
    spoil(folder)
    (finding,) = findings(folder)
    assert finding.level == "fatal"
    assert words in finding.message
    assert finding.remedy
    assert "\n" not in str(finding)


def test_the_engine_says_the_same_of_an_end_that_is_none(folder):
    end(999)(folder)
    with pytest.raises(ValueError, match=r"no token ends a text, since eos_token_id=999"):
        HfEngine(folder, dtype="float32", max_num_seqs=1, on_gpu=False)
    end([0, 1])(folder)
    assert findings(folder)[-1].level == "ok"


def test_large_weights_are_not_read_and_that_is_said(folder, monkeypatch):
    monkeypatch.setattr(module, "_MOST_READ_BYTES", 1000)
    not_a_number(folder)
    (finding,) = findings(folder)
    assert "not read here, so NaN is found when it loads" in finding.message


def test_a_role_that_the_template_leaves_out_is_fatal(folder):
    finding, other = findings(folder, "developer", "user")
    assert (finding.check, finding.level, other.level) == ("template", "fatal", "ok")
    assert '"role": "developer", "text": "Put the number into <answer>' in finding.message
    assert "put that text into the message of the user" in finding.remedy
    assert [one.level for one in findings(folder, "developer", "user", prompt_template="base")] == [
        "ok"
    ]


def test_a_date_in_the_prompt_is_a_warning_with_a_fixed_one_none(folder):
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}" + ROLES)
    finding, _ = findings(folder)
    assert finding.level == "warning"
    assert "strftime_now" in finding.remedy
    (folder / "chat_template.jinja").write_text("26 Jul 2024" + ROLES)
    assert len(findings(folder)) == 1


def test_an_argument_that_the_template_does_not_read_is_named(folder):
    ends = "{% if enable_thinking %}<think>{% endif %}"
    (folder / "chat_template.jinja").write_text(ROLES + ends)
    given = {"enable_thinking": True, "enable_thinkng": False}
    finding, thinks, _ = findings(folder, chat_args=given)
    assert (finding.level, thinks.level) == ("warning", "warning")
    assert finding.message.startswith("env.chat_args.enable_thinkng=false changes nothing")
    assert thinks.remedy.startswith("evaluation.decoding=sampled with the model card's")
    assert len(findings(folder)) == 1, "nobody asks it to think"


def test_problems_that_an_env_makes_are_looked_at_too(folder):
    (folder / "chat_template.jinja").write_text("{{ messages[0].content | lower }}")
    config = RunConfig.model_validate(
        {
            "env": {"name": "countdown", "prompt_template": "chat"},
            "model": {"path": str(folder)},
            "storage": {"root": folder.parent / "root"},
        }
    )
    assert [one.level for one in model_findings(config)] == ["fatal", "ok"]
