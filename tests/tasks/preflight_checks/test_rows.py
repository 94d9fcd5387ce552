"""Preflight looks at the rows that it is given, and at the form of an answer that they ask for."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.settings.compose import compose
from tasks.preflight import preflight_data
from tasks.preflight_checks import Finding
from tasks.preflight_checks.rows import row_findings

SIZES = ["data.train_batch_size=12", "actor.mini_batch_size=12", "data.test_size=512"]


def ages(folder: Path, count: int, *, same: bool = False, words: str = "") -> str:
    file = folder / "ages.jsonl"
    rows = [
        {"question": f"How old is Ben in year {0 if same else 1000 + i}?{words}", "answer": "37"}
        for i in range(count)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"data.train_files={file}"


@pytest.fixture
def look(tmp_path: Path, tiny_model_path: Path) -> Any:
    """Returns the findings about these rows; a token of the model is a byte."""

    def findings(*words: str) -> list[Finding]:
        where = [f"storage.root={tmp_path}", f"model.path={tiny_model_path}"]
        fits = ["data.max_prompt_length=900", "data.max_response_length=100"]
        template = "env.prompt_template=base"
        given = [*where, "env=custom", template, *SIZES, *fits, *words]
        last = dict(word.split("=", 1) for word in given)
        return list(row_findings(compose([f"{key}={value}" for key, value in last.items()])))

    return findings


def test_rows_that_fit_are_counted(look, tmp_path):
    (found,) = look(ages(tmp_path, 900))
    assert (found.level, found.message) == (
        "ok",
        "900 rows, 388 to train on and 512 to test of data.train_files",
    )


def test_all_settings_to_change_are_in_one_line(look, tmp_path):
    short = ["data.max_prompt_length=80", "data.max_response_length=16"]
    (found,) = look(ages(tmp_path, 300, words="!"), *short)
    assert found.level == "fatal"
    assert found.message.startswith(
        "300 rows, 0 to train on and 512 to test of data.train_files: no step of "
        "data.train_batch_size=12 could be filled; 300 of 300 prompts are longer than "
        "data.max_prompt_length=80: they take "
    )
    assert "no answer can be right: data.max_response_length=16 tokens do not hold" in found.message
    assert found.remedy == f"set {found.overrides}"
    assert found.overrides.startswith("data.test_size=60 data.max_prompt_length=")
    assert "data.max_response_length=" in found.overrides
    (mended,) = look(ages(tmp_path, 300, words="!"), *found.overrides.split())
    assert mended.level == "ok"


@pytest.mark.parametrize(
    ("count", "words", "overrides"),
    [
        (8, [], "data.test_size=1 data.train_batch_size=7 actor.mini_batch_size=7"),
        (20, [], "data.test_size=4"),
        (
            *(300, ["data.train_batch_size=256", "actor.mini_batch_size=128"]),
            "data.test_size=60 data.train_batch_size=128",
        ),
        (1, [], None),
    ],
)
def test_a_small_file_gets_sizes_that_fit(look, tmp_path, count, words, overrides):
    file = ages(tmp_path, count)
    (found,) = look(file, *words)
    assert found.level == "fatal"
    if overrides is not None:
        assert found.overrides == overrides
        assert [one.level for one in look(file, *words, *overrides.split())] == ["ok"]


def test_duplicates_are_no_rows_to_train_on(look, tmp_path):
    (found,) = look(ages(tmp_path, 900, same=True), "data.test_size=10")
    assert found.level == "fatal"
    assert "no step of data.train_batch_size=12 could be filled" in found.message


def test_a_row_that_cannot_be_read_is_named(look, tmp_path):
    file = ages(tmp_path, 900)
    with (tmp_path / "ages.jsonl").open("a") as rows:
        rows.write('{"question": "How old?"}\n')
    (found,) = look(file)
    assert found.level == "fatal"
    assert "ages.jsonl: row " in found.message


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["env=custom"], "'37 </think> <answer> 37 </answer>'"),
        (["env=countdown", "data.train_files=[]"], "</think> <answer> "),
        (["env=number_questions", "data.train_files=[]", "env.prompt_template=chat"], None),
    ],
)
def test_the_form_that_a_prompt_asks_for_must_fit_into_a_response(look, tmp_path, words, shown):
    more = [ages(tmp_path, 900), *words]
    found = look(*more, "data.max_response_length=20")
    warned = [one for one in found if "no answer can be right" in one.message]
    assert len(warned) == (shown is not None)
    if shown is not None:
        assert shown in warned[0].message
        wide = look(*more, warned[0].overrides)
        assert all("no answer can be right" not in one.message for one in wide)


def test_what_needs_no_model_does_not_look_at_rows(tmp_path):
    config = compose([f"storage.root={tmp_path}", "env=custom", ages(tmp_path, 3)])
    assert all(finding.check != "rows" for finding in preflight_data(config))


@pytest.mark.slow
def test_the_laptop_model_cannot_answer_own_questions_in_16_tokens(tmp_path, smollm2):
    """As a reader of docs/data.md met it: preflight was green, and nothing could be right."""
    words = [f"storage.root={tmp_path}", "preset=smollm2-laptop", f"model.path={smollm2}"]
    (found,) = row_findings(compose([*words, "env=custom", ages(tmp_path, 900)]))
    assert "no answer can be right: data.max_response_length=16" in found.message
    assert list(row_findings(compose(words))) == []
