"""ATTACKS by parquet: small files that would fill the memory, links, pipes, other columns."""

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.system import plain_parquet
from rl_core.system.plain_parquet import open_parquet, read_table

LONG, MANY = "x" * 2**20, 16_000
SCHEMA = pa.schema([("step", pa.int64()), ("response", pa.string())])


def often(text: str | bytes) -> pa.Array:
    """One text, `MANY` times: 16 GB that a file stores once."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * MANY, pa.int32()), pa.array([text]))


def nested() -> pa.Array:
    rows = pa.array(range(MANY + 1), pa.int32())
    return pa.ListArray.from_arrays(rows, pa.StructArray.from_arrays([often(LONG)], ["content"]))


BOMBS: dict[str, Any] = {
    "a text": lambda: often(LONG),
    "bytes": lambda: often(LONG.encode()),
    "a text in a conversation": nested,
}


def write(path: Path, column: pa.Array, **options: Any) -> None:
    pq.write_table(pa.table({"response": column}), path, compression="zstd", **options)


@pytest.mark.parametrize("kind", BOMBS)
def test_a_file_that_would_fill_the_memory_is_refused_unread(kind, tmp_path):
    path = tmp_path / "a.parquet"
    write(path, BOMBS[kind]())
    assert path.stat().st_size < 1_000
    with pytest.raises(ValueError, match=r"bytes that would take more than 8 GiB in memory"):
        open_parquet(path).__enter__()


def test_so_is_a_number_that_is_there_a_billion_times(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_parquet, "MAX_DECODED_BYTES", 2**20)
    path = tmp_path / "a.parquet"
    write(path, pa.array([7] * 200_000))
    assert path.stat().st_size < 2_000
    with pytest.raises(ValueError, match="would take more than"):
        open_parquet(path).__enter__()


def test_texts_that_share_their_beginning_count_in_full(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_parquet, "MAX_DECODED_BYTES", 2**22)
    path = tmp_path / "a.parquet"
    texts = pa.array(["x" * 10_000 + str(i) for i in range(1_000)])
    write(path, texts, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match="would take more than"):
        open_parquet(path).__enter__()


def test_what_fits_is_read_also_where_the_bound_by_metadata_is_far_above(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_parquet, "MAX_DECODED_BYTES", 2**22)
    path = tmp_path / "a.parquet"
    texts = [f"{'x' * 500}{i}" for i in range(2_000)]
    write(path, pa.array([[{"content": text, "n": 1}] for text in texts]))
    with open_parquet(path) as file:
        assert file.read()["response"].to_pylist()[7] == [{"content": texts[7], "n": 1}]


def test_only_a_plain_file_is_opened(tmp_path):
    write(tmp_path / "a.parquet", pa.array(["x"]))
    (tmp_path / "link.parquet").symlink_to(tmp_path / "a.parquet")
    os.mkfifo(tmp_path / "pipe.parquet")
    for name in ("link", "pipe"):
        with pytest.raises(ValueError, match=r"is a link|is no plain file"):
            open_parquet(tmp_path / f"{name}.parquet").__enter__()
    with open_parquet(tmp_path / "link.parquet", follow=True) as file:
        assert file.metadata.num_rows == 1


def test_columns_of_another_type_or_twice_are_refused_and_missing_ones_are_null(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, pa.array(["x"]))
    assert read_table(path, SCHEMA).to_pylist() == [{"step": None, "response": "x"}]
    write(path, pa.array([1]))
    with pytest.raises(ValueError, match="column response is int64 and not string"):
        read_table(path, SCHEMA)
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["step", "step"]), path)
    with pytest.raises(ValueError, match="two columns have one name"):
        read_table(path, SCHEMA)
    path.write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"a\.parquet: not a readable parquet file"):
        read_table(path, SCHEMA)
