from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data.parquet_guard import DatasetError, read_parquet

MILLION = 1_000_000


def write(path: Path, num_rows: int = 3) -> None:
    pq.write_table(pa.table({"a": list(range(num_rows)), "b": ["x"] * num_rows}), path)


def corrupt(path: Path) -> None:
    """Overwrites the footer, magic bytes kept."""
    write(path)
    content = path.read_bytes()
    path.write_bytes(content[:-60] + b"\x1b[31m" * 10 + content[-10:])


def truncated(path: Path) -> None:
    write(path)
    path.write_bytes(path.read_bytes()[:-20])


def damaged_page(path: Path) -> None:
    pq.write_table(pa.table({"a": list(range(100))}), path, compression="zstd")
    content = bytearray(path.read_bytes())
    content[60:200] = bytes(140)
    path.write_bytes(bytes(content))


def hanging_link(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def one_value_repeated(path: Path) -> None:
    """A million rows of one text of a million characters, in a file of a few kilobytes."""
    text = pa.DictionaryArray.from_arrays(
        pa.array([0], pa.int32()).take(pa.array([0] * MILLION)), pa.array(["x" * MILLION])
    )
    pq.write_table(
        pa.table({"text": text}), path, compression="zstd", dictionary_pagesize_limit=10 * MILLION
    )


def one_value_repeated_within_lists(path: Path) -> None:
    messages = pa.array([[{"role": "user", "content": "x" * MILLION}] * 3] * 5)
    pq.write_table(
        pa.table({"prompt": messages}),
        path,
        compression="zstd",
        dictionary_pagesize_limit=10 * MILLION,
    )


def not_utf8(path: Path) -> None:
    text = pa.StringArray.from_buffers(
        1, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"\xff\xfe")
    )
    pq.write_table(pa.table({"text": text}), path)


@pytest.mark.parametrize(
    ("make", "problem", "remedy"),
    [
        (lambda path: None, "is missing", "run `countdown-train generate`"),
        (lambda path: path.mkdir(), "is a folder", "delete it"),
        (hanging_link, "is a link to", "delete the link"),
        (os.mkfifo, "is a pipe or a device", "delete it"),
        (lambda path: path.touch(), r"empty \(0 bytes\)", "run again"),
        (lambda path: path.write_text("nums,target\n1,2\n"), "not a readable parquet", "run again"),
        (lambda path: path.write_bytes(os.urandom(5000)), "not a readable parquet", "run again"),
        (corrupt, "not a readable parquet", "run again"),
        (truncated, "not a readable parquet", "run again"),
        (damaged_page, "not a readable parquet", "run again"),
        (not_utf8, "not a readable parquet file.*UTF8", "run again"),
        (lambda path: write(path, 101), "holds 101 rows, and at most 100", "data.train_size"),
    ],
)
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path, make: Callable[[Path], None], problem: str, remedy: str
) -> None:
    path = tmp_path / "train.parquet"
    make(path)
    with pytest.raises(DatasetError, match=problem) as caught:
        read_parquet(path, max_rows=100)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert remedy in message
    assert message.isprintable(), "one line, and nothing that steers a terminal"
    assert len(message) < 400


def test_a_parquet_bomb_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    one_value_repeated(path)
    assert path.stat().st_size < 100_000
    with pytest.raises(
        DatasetError, match=r"would take up to 931\.\d GiB in memory, and at most 8"
    ):
        read_parquet(path)


def test_what_pages_hold_is_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"a": [bytes(3 * MILLION)]}), path, use_dictionary=False)
    assert read_parquet(path).num_rows == 1
    monkeypatch.setattr("rl_core.data.parquet_guard.MAX_DECODED_BYTES", 2 * MILLION)
    with pytest.raises(DatasetError, match="GiB"):
        read_parquet(path)


def test_texts_within_lists_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "train.parquet"
    one_value_repeated_within_lists(path)
    table = read_parquet(path)
    assert table.nbytes > 15 * MILLION
    monkeypatch.setattr("rl_core.data.parquet_guard.MAX_DECODED_BYTES", 15 * MILLION)
    with pytest.raises(DatasetError, match="GiB"):
        read_parquet(path)


@pytest.mark.parametrize("first", [[], None])
def test_an_empty_first_list_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[str] | None
) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(
        pa.table({"texts": pa.array([first, ["x" * MILLION] * 20])}),
        path,
        dictionary_pagesize_limit=10 * MILLION,
    )
    assert path.stat().st_size < 2 * MILLION
    monkeypatch.setattr("rl_core.data.parquet_guard.MAX_DECODED_BYTES", 10 * MILLION)
    with pytest.raises(DatasetError, match="GiB"):
        read_parquet(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_says_so(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    write(path)
    path.chmod(0)
    with pytest.raises(DatasetError, match="may not be read by this user"):
        read_parquet(path)


def test_a_sound_file_is_read_whole(tmp_path: Path) -> None:
    write(tmp_path / "train.parquet")
    (tmp_path / "link").symlink_to(tmp_path / "train.parquet")
    assert read_parquet(tmp_path / "link")["a"].to_pylist() == [0, 1, 2]
    write(tmp_path / "none.parquet", 0)
    assert read_parquet(tmp_path / "none.parquet").num_rows == 0
