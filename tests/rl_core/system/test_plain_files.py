"""ATTACKS by files: links, pipes, depth, aliases and numbers that end, hang or mislead a reader."""

import json
import os
import re
import socket
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rl_core.system.plain_files import (
    MOST_YAML_BYTES,
    open_plain,
    parse_json,
    parse_yaml,
    read_json,
    read_plain,
    read_yaml,
)

STRANGER = 54321
is_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")


def fill(folder: Path) -> Path:
    """Makes a folder with one plain file, and everything that only looks like one."""
    inside, outside = folder / "inside", folder / "outside"
    (inside / "eval").mkdir(parents=True)
    outside.mkdir()
    (inside / "eval" / "plain").write_text('{"step": 1}')
    (outside / "secret").write_text('{"key": "sk-"}')
    (inside / "link").symlink_to(outside / "secret")
    (inside / "folder_link").symlink_to(outside)
    (inside / "to_sibling").symlink_to(Path("eval", "plain"))
    os.mkfifo(inside / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(inside / "socket"))
    return inside


NOT_PLAIN = (
    *("link", "folder_link/secret", "to_sibling", "pipe", "socket", "eval"),
    *("eval/plain/x", "folder_link"),
)


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_only_a_plain_file_is_read(name, tmp_path):
    inside = fill(tmp_path)
    with pytest.raises(ValueError, match=r"is a link|is no plain file") as error:
        read_json(inside / name, below=inside)
    assert str(inside / name) in str(error.value)


def test_a_plain_file_is_read_also_through_a_link_to_its_folder(tmp_path):
    inside = fill(tmp_path)
    (tmp_path / "runs").symlink_to(inside)
    for folder in (inside, tmp_path / "runs"):
        assert read_json(folder / "eval" / "plain", below=folder) == {"step": 1}
        with open_plain(folder / "eval" / "plain") as file:
            assert file.read() == b'{"step": 1}'
    with pytest.raises(FileNotFoundError, match="none"):
        read_yaml(inside / "none", below=inside)


@is_root
def test_a_hard_link_in_anothers_folder_leads_nowhere(tmp_path):
    inside = fill(tmp_path)
    os.link(tmp_path / "outside" / "secret", inside / "hard")
    os.chown(inside, STRANGER, STRANGER)
    with pytest.raises(ValueError, match="belongs to user 0, its folder to 54321"):
        read_json(inside / "hard", below=inside)
    os.chown(inside / "eval" / "plain", STRANGER, STRANGER)
    assert read_json(inside / "eval" / "plain", below=inside) == {"step": 1}


def test_no_file_is_left_open(tmp_path):
    inside = fill(tmp_path)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for name in (*NOT_PLAIN, "eval/plain", "none"):
        with suppress(ValueError, FileNotFoundError):
            read_plain(inside / name, below=inside)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


BAD_YAML = {
    "a: &a [1]\nb: [*a, *a]": "an alias, *a, in line 2: write the value out",
    "a: &a [*a]": "an alias",
    "[" * 30_000: "nest",  # ends the process in libyaml, if it is composed
    "- " * 21 + "x": "nested deeper than 20",
    "seed: " + "9" * 6_000: "a number of 6,000 characters",
    "seed: " + "9" * 99: "more than 64 bits",
    "x: " + "1:" * 200_000 + "1": "a number of 400,001 characters",  # a quadratic time
    "day: 2026-99-99": "month must be in 1..12",
    "!!timestamp x": "the tag",
    "!!python/object/apply:os.system [true]": "the tag",
    "a: .nan": "a finite number is needed",
    "a: =": "is not YAML",
    "? [a]\n: b": "unhashable key in line 1",
    "a: [1": "is not YAML",
    "a: 1\n---\nb: 2": "another document",
    "a: \ud800": "cannot be read",
    "a: \x1b[2J": "is not YAML",
}


@pytest.mark.parametrize(("text", "reason"), BAD_YAML.items(), ids=range(len(BAD_YAML)))
def test_bad_yaml_is_one_line(text, reason):
    with pytest.raises(ValueError, match=f"^F .*{re.escape(reason)}") as error:
        parse_yaml(text, "F")
    assert len(str(error.value)) < 300
    assert str(error.value).isprintable()


def test_aliases_that_grow_are_not_followed():
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    with pytest.raises(ValueError, match="an alias"):
        parse_yaml("\n".join(lines), "F")


BAD_JSON = {
    "[" * 200_000: "nested deeper than 20",
    '{"a":' * 21 + "1" + "}" * 21: "nested deeper than 20",
    "[1": "is not JSON",
    "": "is not JSON",
    "9" * 6_000: "is not JSON",
    "9" * 30: "more than 64 bits",
    "NaN": "a finite number is needed",
    "[-1e999]": "a finite number is needed",
    '"\\ud800"': "half of a surrogate pair",
}


@pytest.mark.parametrize(("text", "reason"), BAD_JSON.items(), ids=range(len(BAD_JSON)))
def test_bad_json_is_one_line(text, reason):
    with pytest.raises(ValueError, match=f"^F .*{reason}") as error:
        parse_json(text, "F")
    assert len(str(error.value)) < 300


def test_what_is_too_large_is_not_read(tmp_path):
    (tmp_path / "a.yaml").write_text("- x\n" * (MOST_YAML_BYTES // 4 + 1))
    with pytest.raises(ValueError, match=r"a\.yaml is larger than 1,048,576 bytes"):
        read_yaml(tmp_path / "a.yaml")
    (tmp_path / "a.json").write_text("[1, 2]")
    assert read_json(tmp_path / "a.json", most_bytes=6) == [1, 2]
    with pytest.raises(ValueError, match="is larger than 5 bytes"):
        read_json(tmp_path / "a.json", most_bytes=5)


def test_limits_that_a_caller_may_move():
    assert parse_json("[NaN, Infinity]", finite=False)[1] == float("inf")
    assert parse_json("[" * 30 + "]" * 30, deepest=30)
    assert parse_json(json.dumps([2**64 - 1, -(2**63)])) == [2**64 - 1, -(2**63)]


TREES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**63), 2**64 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)  # fmt: skip


@given(TREES)
def test_plain_trees_are_read_as_they_were_written(tree):
    assert parse_json(json.dumps(tree)) == tree
    assert parse_json(json.dumps(tree, ensure_ascii=False).encode()) == tree
    assert parse_yaml(yaml.safe_dump(tree)) == yaml.safe_load(yaml.safe_dump(tree))


@given(st.text() | st.binary() | st.text("[]{}:,-&*!|>'\"\n 0123456789.eEx_+~#%@"))
def test_any_text_is_a_tree_or_a_value_error(text):
    for parse in (parse_json, parse_yaml):
        with suppress(ValueError):
            parse(text, "F")
