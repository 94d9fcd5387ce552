"""Four files that passed every check and could teach nothing, each by the command itself."""

import json
import shutil
from pathlib import Path

import pytest

from flows.cli.main import run_command

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ASKS = "Answer in <answer> </answer> tags. "


@pytest.fixture(scope="module")
def chat_model(tiny_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "model"
    shutil.copytree(tiny_model_path, folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def asked(number: int, asks: str = ASKS) -> str:
    return f"{asks}Tom has {number} apples and buys 3 more. How many has he now?"


def validate(rows: list[object], folder: Path, model: Path, *settings: str) -> int:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_command(
        [
            *("validate", "env=custom", f"model.path={model}", "data.max_prompt_length=512"),
            *(f"data.train_files={file}", "data.test_size=4", "data.train_batch_size=4"),
            *("actor.mini_batch_size=4", f"storage.root={folder / 'out'}", *settings),
        ]
    )


def rows_of(prompt: object) -> list[object]:
    return [{"prompt": prompt(i), "answer": str(i + 3)} for i in range(12)]  # type: ignore[operator]


def turn_of(i: int) -> dict[str, str]:
    return {"role": "user", "content": asked(i)}


def templated(i: int) -> str:
    return f"<|im_start|>user\n{asked(i)}<|im_end|>\n<|im_start|>assistant\n"


THINKING = {"role": "assistant", "content": "Let me think."}


@pytest.mark.parametrize(
    ("prompt", "check", "remedy"),
    [
        (lambda i: json.dumps([turn_of(i)]), "prompt_no_json", "json.loads"),
        (templated, "prompt_no_tags", "choose env.prompt_template=base"),
        (lambda i: [turn_of(i), THINKING], "prompt_open_turn", "leave it out"),
    ],
    ids=["json", "tags", "closed"],
)
def test_prompts_seen_otherwise_are_refused(prompt, check, remedy, chat_model, tmp_path, capfd):
    assert validate(rows_of(prompt), tmp_path, chat_model) != 0
    said = capfd.readouterr().err
    assert f"check {check} failed on 12 rows" in said
    assert remedy in said
    assert '"split": "t' in said


def test_prompts_that_ask_for_another_form_are_a_warning(chat_model, tmp_path, capfd):
    rows = rows_of(lambda i: asked(i, "The last line must be Answer: $Answer. "))
    assert validate(rows, tmp_path, chat_model) == 0
    said = capfd.readouterr().out
    assert "a prompt mentions <answer>, which the reward looks for (ask for it" in said
    assert "warnings: prompt_asks_for_answer" in said


def test_sound_prompts_pass_and_the_first_is_shown(chat_model, tmp_path, capfd):
    assert validate(rows_of(asked), tmp_path, chat_model) == 0
    said = capfd.readouterr().out
    assert "all checks passed" in said
    shown = said.partition("the first prompt, as the model reads it:\n")[2].splitlines()
    assert shown[0] == "  <|im_start|>user"
    assert shown[1].startswith(f"  {ASKS}Tom has ")
    assert shown[1].endswith("<|im_end|>")
    assert shown[2] == "  <|im_start|>assistant"


def test_texts_that_are_templated_already_pass_as_texts(chat_model, tmp_path):
    assert validate(rows_of(templated), tmp_path, chat_model, "env.prompt_template=base") == 0
