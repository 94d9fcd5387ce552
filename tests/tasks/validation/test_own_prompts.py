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


def with_template(model: Path, folder: Path, template: str) -> Path:
    made = Path(shutil.copytree(model, folder / "model"))
    (made / "chat_template.jinja").write_text(template)
    return made


SKIPS = (
    "{% for m in messages %}{% if m.role != 'developer' %}{{ m.content }}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("count", [0, 90])
def test_a_message_that_the_template_leaves_out_is_refused(count, chat_model, tmp_path, capfd):
    """Preflight looks at the first 64 rows, and this command at 10,000."""
    model = with_template(chat_model, tmp_path, SKIPS)
    rows = [{"prompt": [turn_of(i)], "answer": str(i + 3)} for i in range(count)]
    told = [{"role": "developer", "content": ASKS}, turn_of(99)]
    rows += [{"prompt": told, "answer": str(i)} for i in range(12 if not count else 1)]
    test = {"prompt": [turn_of(200)], "answer": "203"}
    assert validate([*rows, *[test] * 4], tmp_path, model) == (1 if count else 2)
    said = capfd.readouterr().err
    assert '"role": "developer", "text": "Answer in <answer> </answer> tags. "' in said
    assert "the chat template writes the text of each message as it is" in said


def test_a_date_in_the_prompt_is_a_warning(chat_model, tmp_path, capfd):
    model = with_template(chat_model, tmp_path, "{{ strftime_now('%d %b %Y') }} " + TEMPLATE)
    assert validate(rows_of(asked), tmp_path, model) == 0
    said = capfd.readouterr().out
    assert "it depends on the day (strftime_now) or on chance, so the prompt differs" in said
    assert "warnings: template_same_tomorrow" in said


def test_a_template_that_fails_is_bad_input(chat_model, tmp_path, capfd):
    model = with_template(chat_model, tmp_path, "{{ messages[0].role + 1 }}")
    assert validate(rows_of(asked), tmp_path, model) == 2
    assert "chat template" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("mark", "column"),
    [("<image>", "images"), ("<video>", "videos"), ("<|audio_pad|>", "audio"), ("<image>", None)],
)
def test_pictures_are_refused_by_their_column_and_else_a_warning(
    mark, column, chat_model, tmp_path, capfd
):
    rows = rows_of(lambda i: f"{mark}{asked(i)}")
    media = {} if column is None else {column: ["cGljdHVyZQ=="]}
    code = validate([row | media for row in rows], tmp_path, chat_model)
    said = capfd.readouterr()
    if column is None:
        assert code == 0
        assert "warnings: prompt_no_media" in said.out
    else:
        assert code == 2
        assert f"its prompt has {mark}, and the column {column} is not read" in said.err
