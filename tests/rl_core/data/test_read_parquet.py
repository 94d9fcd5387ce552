from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data.readers import DatasetError, read_parquet

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
        (hanging_link, "is missing", "run `countdown-train generate`"),
        (os.mkfifo, "is a folder or a device", "delete it"),
        (lambda path: path.touch(), "0 bytes", "run again"),
        (lambda path: path.write_text("nums,target\n1,2\n"), "not a readable parquet", "run again"),
        (lambda path: path.write_bytes(os.urandom(5000)), "not a readable parquet", "run again"),
        (corrupt, "not a readable parquet", "run again"),
        (truncated, "not a readable parquet", "run again"),
        (damaged_page, "not a readable parquet", "run again"),
        (not_utf8, "not a readable parquet file.*UTF8", "run again"),
    ],
)
def test_a_bad_file_is_one_clear_line(
    tmp_path: Path, make: Callable[[Path], None], problem: str, remedy: str
) -> None:
    path = tmp_path / "train.parquet"
    make(path)
    with pytest.raises(DatasetError, match=problem) as caught:
        read_parquet(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert remedy in message
    assert message.isprintable(), "one line, and nothing that steers a terminal"
    assert len(message) < 400


def test_what_a_file_says_that_it_holds_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.parquet"
    pq.write_table(pa.table({"a": [bytes(3 * MILLION)]}), path, use_dictionary=False)
    assert read_parquet(path).num_rows == 1
    monkeypatch.setattr("rl_core.data.readers.MAX_DECODED_BYTES", 2 * MILLION)
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
