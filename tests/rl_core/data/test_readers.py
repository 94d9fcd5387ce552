"""Files that a user names: found here or in the hub's cache, read with the row said, or refused."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data.readers import (
    DatasetError,
    count_rows,
    find_files,
    is_hub_name,
    read_parquet,
    read_records,
)
from tests.support.own_data import put_in_cache, write_rows

SETTING = "data.train_files"
ROWS: list[dict[str, Any]] = [{"nums": [1, 2], "target": 3}, {"nums": [4, 5], "target": 9}]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json"])
def test_every_kind_of_file_gives_the_same_records(tmp_path, name):
    file = write_rows(tmp_path / name, ROWS)
    assert find_files(SETTING, [str(file)], "train") == [file]
    assert list(read_records(file, ("nums", "target"))) == [(1, ROWS[0]), (2, ROWS[1])]


def test_a_json_file_may_be_one_list(tmp_path):
    file = tmp_path / "a.json"
    for before, indent in (("", None), ("\ufeff", 4), ("\n" * 99, None)):
        file.write_text(before + json.dumps(ROWS, indent=indent))
        assert list(read_records(file, ("nums", "target"))) == [(1, ROWS[0]), (2, ROWS[1])]
        assert count_rows(file) == 2
    for text, words in (
        ("[1, 2]", "row 1 is a int, every row must be a JSON object"),
        ('[{"a": 1},\n{"a": ]', "the list in it is not JSON (Expecting value at line 2)"),
        ("[" * 100_000, "the list in it is not JSON"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=re.escape(words)):
            list(read_records(file, ("nums",)))


def test_json_rows_are_counted_as_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('\n{"target": 3}\n\n{"target": 9, "prompt": "\u2028 is no line end"}\r\n')
    assert [row for row, _ in read_records(file, ("target",))] == [2, 4]


def test_globs_stand_for_their_files_by_name(tmp_path, monkeypatch):
    for name in ("b.jsonl", "a.jsonl", "deep/er/c.jsonl"):
        write_rows(tmp_path / name, ROWS)
    names = [file.name for file in find_files(SETTING, [f"{tmp_path}/*.jsonl"], "train")]
    assert names == ["a.jsonl", "b.jsonl"]
    monkeypatch.chdir(tmp_path / "deep")
    everywhere = find_files(SETTING, ["er/c.jsonl", "../[ab].jsonl"], "train")
    assert [file.name for file in everywhere] == ["c.jsonl", "a.jsonl", "b.jsonl"]
    assert len(find_files(SETTING, [f"{tmp_path}/**/*.jsonl"], "train")) == 3


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none.parquet", "none.parquet: there is no such file; a relative path starts at /"),
        ("none/x.parquet", "there is no such file"),
        ("", "is a folder"),
        ("*.parquet", "there is no such file"),
        ("folder", "is a folder: name its files, such as folder/*.parquet"),
        ("rows.csv", "rows.csv is of a kind that is not read: give parquet or JSON lines"),
        ("*.csv", "rows.csv is of a kind"),
        ("x" * 300, "not readable"),
        ("pipe", "pipe is no plain file: write its rows into one"),
    ],
)
def test_names_that_stand_for_nothing(tmp_path, monkeypatch, name, words):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("rows.csv").write_text("nums,target")
    os.mkfifo("pipe")
    with pytest.raises(ValueError, match=r"data\.train_files") as caught:
        find_files(SETTING, [name], "train")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"target": 1}\n{"target": \n', "line 2 is not JSON (Expecting value"),
        (b'{"target": 1}\n\n[1]\n', "line 3 is a list, every line must be a JSON object"),
        (b'{"target": "\xff"}\n', "line 1 is not UTF-8"),
        (b'{"target": "\\ud800"}\n', "line 1 is not JSON"),
        (b"[" * 100_000, "line 1 is not JSON"),
        (b'{"target": ' + b"9" * 10_000 + b"}", "line 1 is not JSON"),
    ],
)
def test_lines_that_are_no_objects(tmp_path, content, words):
    file = tmp_path / "a.jsonl"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.jsonl") as caught:
        list(read_records(file, ("target",)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_cut_short_or_without_any_known_column(tmp_path):
    file = write_rows(tmp_path / "a.parquet", ROWS)
    with pytest.raises(ValueError, match=r"none of the columns \['prompt'\], only \['nums', 't"):
        list(read_records(file, ("prompt",)))
    file.write_bytes(file.read_bytes()[:200])
    with pytest.raises(
        ValueError, match=r"^[^\n]*not a readable parquet file, truncated or damaged[^\n]*$"
    ):
        list(read_records(file, ("nums",)))
    far = pa.array([2**62], pa.timestamp("ms"))  # Python's dates end in the year 9999
    for values in (far, pa.array([b"\xff"]).view(pa.utf8())):
        pq.write_table(pa.table({"nums": values}), file)
        with pytest.raises(ValueError, match=r"a\.parquet: not a readable parquet file, truncated"):
            list(read_records(file, ("nums",)))


def test_a_hub_name_is_owner_and_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_name("Jiayi-Pan/Countdown-Tasks-3to4")
    assert is_hub_name("openai/gsm8k")
    for path in ("gsm8k", "a/b/c", "./a", "~/a", "/a/b", "data/*", "data/rows.csv", "a/b.parquet"):
        assert not is_hub_name(path), path
    Path("openai").mkdir()
    assert not is_hub_name("openai/gsm8k"), "a path into a folder that is there"


def test_the_hubs_countdown_tasks_come_from_the_cache(hub_cache):
    name = "Jiayi-Pan/Countdown-Tasks-3to4"
    files = {f"data/train-0000{i}-of-00002.parquet": [row] for i, row in enumerate(ROWS)}
    snapshot = put_in_cache(hub_cache, name, files)
    found = find_files(SETTING, [name], "train")
    assert [file.relative_to(snapshot) for file in found] == [Path(path) for path in files]
    assert [record for file in found for _, record in read_records(file, ("nums", "target"))] == (
        ROWS
    )
    assert find_files(SETTING, [name], "train", from_hub=False) == []
    half = "me/one-of-two-files"
    put_in_cache(hub_cache, half, {"data/train-00001-of-00002.parquet": ROWS})
    for lacking, split in ((name, "test"), (half, "train")):
        with pytest.raises(ValueError, match=rf"{SETTING}={lacking} lacks files of the split"):
            find_files(SETTING, [lacking], split)


def test_a_refusal_of_the_hub_says_no_token(hub_cache, monkeypatch, caplog):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(ValueError, match=r"data\.train_files=me/mine") as caught:
        find_files(SETTING, ["me/mine"], "train")
    assert "\n" not in str(caught.value)
    assert "hf_secret" not in str(caught.value) + caplog.text
    assert not hub_cache.exists() or not list(hub_cache.rglob("*.parquet"))


MILLION = 1_000_000


def write(path: Path, num_rows: int = 3) -> None:
    pq.write_table(pa.table({"a": list(range(num_rows)), "b": ["x"] * num_rows}), path)


def corrupt(path: Path) -> None:
    """Overwrites the footer, magic bytes kept."""
    write(path)
    content = path.read_bytes()
    path.write_bytes(content[:-60] + b"\x1b[31m" * 10 + content[-10:])


def damaged_page(path: Path) -> None:
    pq.write_table(pa.table({"a": list(range(100))}), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[60:200] = bytes(140)
    path.write_bytes(bytes(content))


def not_utf8(path: Path) -> None:
    text = pa.StringArray.from_buffers(
        1, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")
    )
    pq.write_table(pa.table({"text": text}), path)


@pytest.mark.parametrize(
    ("make", "problem", "remedy"),
    [
        (lambda path: None, "is missing", "run `countdown-train generate`"),
        (lambda path: path.mkdir(), "is no plain file", "delete"),
        (os.mkfifo, "is no plain file", "delete"),
        (lambda path: path.touch(), "0 bytes", "run again"),
        (lambda path: path.write_bytes(os.urandom(5000)), "not a readable parquet", "run again"),
        (corrupt, "not a readable parquet", "run again"),
        (damaged_page, "not a readable parquet", "run again"),
        (not_utf8, "not a readable parquet file.*UTF8", "run again"),
    ],
)
def test_a_bad_file_is_one_clear_line(tmp_path, make, problem, remedy):
    path = tmp_path / "train.parquet"
    make(path)
    with pytest.raises(DatasetError, match=problem) as caught:
        read_parquet(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert remedy in message
    assert message.isprintable(), "one line, and nothing that steers a terminal"
    assert len(message) < 400


def test_what_a_file_says_that_it_holds_is_bounded(tmp_path, monkeypatch):
    path = tmp_path / "train.parquet"
    write(path, 0)
    (tmp_path / "link").symlink_to(path)
    assert read_parquet(tmp_path / "link").num_rows == 0
    pq.write_table(pa.table({"a": [bytes(3 * MILLION)]}), path, use_dictionary=False)
    assert read_parquet(path).num_rows == 1
    monkeypatch.setattr("rl_core.system.plain_parquet.MAX_DECODED_BYTES", 2 * MILLION)
    monkeypatch.setattr("rl_core.system.plain_parquet._FITTING", set())
    with pytest.raises(DatasetError, match="GiB"):
        read_parquet(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_says_so(tmp_path):
    path = tmp_path / "train.parquet"
    write(path)
    path.chmod(0)
    with pytest.raises(DatasetError, match="Permission denied"):
        read_parquet(path)


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        *(("utf-16", "UTF-16"), ("utf-32", "UTF-32")),
        *(
            (f"utf-{bits}-{end}", f"UTF-{bits}{end.upper()}")
            for bits in (16, 32)
            for end in ("le", "be")
        ),
    ],
)
def test_another_encoding_is_named_with_the_remedy(encoding, name, suffix, tmp_path):
    file = tmp_path / f"rows{suffix}"
    rows = [{"question": "Anna has 1 plum?", "answer": "4"}] * 2
    text = json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows))
    file.write_bytes(text.encode(encoding))
    for read in (lambda: list(read_records(file, ())), lambda: count_rows(file)):
        with pytest.raises(ValueError, match=rf"is {name}, and UTF-8 is read: iconv -f {name} -t"):
            read()


def test_latin_1_is_named(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes('{"question": "Café?", "answer": "4"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"line 1 is not UTF-8: if it is Latin-1, iconv -f LATIN1"):
        list(read_records(tmp_path / "rows.jsonl", ()))
