from contextlib import suppress
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.system.words import disk_size
from tasks.queries.parquet_look import columns, describe_file, first_rows, text_lengths

ROWS = [
    {"n": 1, "prompt": [{"role": "user", "content": "abc"}], "answer": "x"},
    {"n": 2, "prompt": [{"role": "system", "content": "ab"}, {"role": "user", "content": "é"}]},
    {"n": None, "prompt": [{"role": "user", "content": "0123456789"}], "answer": ""},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "any [1].parquet"  # no pattern
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    return path


def test_first_rows_keep_what_is_nested(file):
    assert first_rows(file, 2).to_dicts() == [ROWS[0], ROWS[1] | {"answer": None}]
    assert first_rows(file, 99).height == 3
    assert describe_file(file) == f"{file}: 3 rows, {disk_size(file.stat().st_size)}"


def test_columns_are_named_with_types_as_verl_writes_them(file):
    assert columns(file).rows() == [
        ("n", "int64", 1),
        ("prompt", "list<struct<role: string, content: string>>", 0),
        ("answer", "string", 1),
    ]


def test_lengths_of_conversations_count_all_their_messages(file):
    (characters,) = text_lengths(file, None, None)
    assert list(characters) == ["unit", "rows", "min", "mean", "p50", "p90", "p99", "max"]
    assert list(characters.values()) == ["characters", 3, 3, 5.3, 3, 10, 10, 10]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("n", "column 'n' holds int64, no text"),
        ("answr", "no column 'answr'; did you mean answer? (of texts: prompt, answer)"),
    ],
)
def test_what_is_no_text_is_said(file, column, words):
    with pytest.raises(ValueError, match="any") as refused:
        text_lengths(file, column, None)
    assert words in str(refused.value)


def test_what_is_no_parquet_is_said_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        first_rows(tmp_path / "none.parquet", 1)
    (tmp_path / "text.parquet").write_text("no parquet")
    for look in (columns, lambda path: first_rows(path, 1)):
        with pytest.raises(ValueError, match="not a readable parquet file") as refused:
            look(tmp_path / "text.parquet")
        assert "\n" not in str(refused.value)


def test_no_flipped_bits_end_the_process(file):
    """Some made a library call abort(), others a panic, which is no Exception."""
    numbers = Random(5)
    good = file.read_bytes()
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    for _ in range(100):
        damaged = bytearray(good)
        damaged[numbers.randrange(footer, len(good) - 8)] ^= 1 << numbers.randrange(8)
        file.write_bytes(damaged)
        for look in (columns, lambda path: first_rows(path, 2)):
            with suppress(ValueError):
                look(file)
