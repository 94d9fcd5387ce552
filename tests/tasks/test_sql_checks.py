from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks import sql


@pytest.fixture
def splits(tmp_path: Path) -> tuple[Path, Path]:
    train, test = tmp_path / "train.parquet", tmp_path / "test.parquet"
    rows = {"nums": [[1, 2, 3], [4, 5, 6]], "target": [6, 50], "solution": ["1+2+3", "(4+6)*5"]}
    pq.write_table(pa.table(rows), train)
    rows = {"nums": [[2, 2, 3], [4, 5, 6]], "target": [12, 50], "solution": ["2*2*3", "(4+5)*6"]}
    pq.write_table(pa.table(rows), test)
    return train, test


def test_a_check_selects_the_rows_that_break_the_rule(
    splits: tuple[Path, Path], tmp_path: Path
) -> None:
    train, test = splits
    check = tmp_path / "wrong_solution.sql"
    check.write_text(
        "-- one row per solution that does not reach its target.\n"
        "-- $first: int = 0 (leave out targets below)\n"
        "select * from (from train union all from test)\n"
        "where not evaluates_to(solution, nums, target) and target >= $first\n"
    )
    violations = sql.run_check(check, train=train, test=test)
    assert violations["solution"].to_list() == ["(4+5)*6"]
    assert sql.run_check(check, train=train, test=test, parameters={"first": 51}).is_empty()
    assert sql.run_check(check, train=train, test=train).is_empty()


def test_a_truncated_split_is_named(splits: tuple[Path, Path], tmp_path: Path) -> None:
    train, test = splits
    test.write_bytes(test.read_bytes()[:100])
    check = tmp_path / "any.sql"
    check.write_text("-- one row per row.\nselect * from test\n")
    with pytest.raises(ValueError, match=r"test\.parquet: not a readable parquet file"):
        sql.run_check(check, train=train, test=test)
