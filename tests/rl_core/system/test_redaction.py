import json
import pickle
import subprocess
import traceback
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from rl_core.errors import OutOfMemory, WorkerDied
from rl_core.system.process_env import is_credential, is_secret_name
from rl_core.system.redaction import is_secret, redact, redact_all, redact_error, redacting_errors

TABLES = yaml.safe_load(Path(__file__).with_name("redaction.yaml").read_text())
SECRET = "aV3ry/Long+Secret=="


@pytest.mark.parametrize("name", TABLES["names of secrets"])
def test_a_secret_is_told_by_the_name_of_its_variable(name, monkeypatch):
    is_one_word = name == "PGPASS"  # `PASS` counts as a word of its own only: COMPASS, BYPASS
    assert is_secret_name(name) != is_one_word
    assert is_credential(name, SECRET) != is_one_word  # no child gets it either
    monkeypatch.setenv(name, SECRET)
    as_json = json.dumps({"k": SECRET})
    shown = redact(f"{SECRET} was refused; {as_json}; ?t=aV3ry%2FLong%2BSecret%3D%3D")
    assert ("aV3ry" in shown) == is_one_word


@pytest.mark.parametrize("name", TABLES["other names"])
def test_what_only_looks_like_a_secrets_name_stays(name, monkeypatch):
    assert not is_secret_name(name)
    monkeypatch.setenv(name, "1234567890ab")
    assert redact("1234567890ab") == "1234567890ab"


def test_a_word_or_a_file_is_no_secret():
    assert not is_secret("PROMPT_KEY", "question")
    assert not is_secret("SHORT_TOKEN", "test")
    assert not is_secret("GOOGLE_APPLICATION_CREDENTIALS", __file__)
    assert is_secret("WANDB_API_KEY", "a-secret-of-many-letters")
    assert is_secret("AWS_SECRET_ACCESS_KEY", "/a/no+file/of/this/machine")
    assert is_secret("TOKEN", "/" + "a" * 5_000)


@pytest.mark.parametrize(("text", "shown"), TABLES["told by their form"].items())
def test_a_secret_is_told_by_its_form(text, shown):
    assert redact(text) == shown
    quoted = json.dumps({"reason": f'"{text}"', "next": "step"})
    assert json.loads(redact(quoted))["next"] == "step"


@pytest.mark.parametrize("text", TABLES["other text"])
def test_other_text_stays_as_it_is(text):
    assert redact(text) == text


def test_the_password_of_a_url_in_the_environment_is_blotted_out_alone_too(monkeypatch):
    monkeypatch.setenv("DATABASE", "postgresql://me:hunter2hunter2@db/x")
    assert redact("login with hunter2hunter2 failed") == "login with *** failed"


def test_a_key_of_several_lines_is_found_where_it_stands_in_one(monkeypatch):
    monkeypatch.setenv("MY_SECRET", 'first line\nsecond "line"')
    assert redact('ValueError: first line second "line"') == "ValueError: ***"
    assert json.loads(redact(json.dumps(['x first line\nsecond "line"']))) == ["x ***"]


@pytest.mark.parametrize(
    "text", ["://a:" * 30_000, "?" * 100_000, "-eyJ" * 30_000, "&token" * 20_000, "A_" * 60_000]
)
def test_long_hostile_text_is_read_in_linear_time(text):
    redact(text)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(f"login with {SECRET} failed", 3),
        OSError(13, f"denied to {SECRET}", f"/mnt/{SECRET}"),
        OutOfMemory("update_actor", f"at {SECRET}"),
        WorkerDied("learner", f"said {SECRET}"),
        KeyError(SECRET),
    ],
)
def test_an_error_says_no_secret_nor_does_what_led_to_it(error, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)

    def fail() -> None:
        try:
            raise ValueError(f"Bearer {SECRET}")
        except ValueError as cause:
            error.add_note(f"seen with {SECRET}")
            raise error from cause

    with pytest.raises(type(error)) as caught:
        fail()
    assert SECRET in "".join(traceback.format_exception(caught.value))
    redact_error(caught.value)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in str(pickle.loads(pickle.dumps(caught.value)))
    assert "***" in str(caught.value)
    assert isinstance(caught.value, type(error))


def _invalid() -> Exception:
    try:
        TypeAdapter(int).validate_python(SECRET)
    except ValueError as error:
        return error
    raise AssertionError


class _Worded(Exception):  # noqa: N818  # a library's, which words itself late
    def __str__(self) -> str:
        return f"refused {SECRET}"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (subprocess.CalledProcessError(1, ["curl", "-H", SECRET]), subprocess.CalledProcessError),
        (RuntimeError({"headers": [("x", SECRET)]}), RuntimeError),
        (ExceptionGroup("two", [ValueError(SECRET), OSError(SECRET)]), ExceptionGroup),
        # These cannot be changed where they stand.
        (ExceptionGroup(SECRET, [ValueError(SECRET)]), RuntimeError),
        (ValueError(SECRET.encode()), ValueError),
        (_invalid(), ValueError),
        (_Worded(), RuntimeError),
        (RuntimeError("nothing"), RuntimeError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_no_error_leaves_with_a_secret(error, kind, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)

    @redacting_errors()
    def outer() -> None:
        inner()

    @redacting_errors()
    def inner() -> None:
        raise error

    with pytest.raises(kind) as caught:
        outer()
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown + repr(caught.value)
    assert ("***" in shown) != ("nothing" in shown)


def test_texts_are_redacted_wherever_a_table_holds_them(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    rows: list[Any] = [{"found": f"at {SECRET}", "n": 1, "more": (SECRET, None)}]
    assert redact_all(rows) == [{"found": "at ***", "n": 1, "more": ("***", None)}]
