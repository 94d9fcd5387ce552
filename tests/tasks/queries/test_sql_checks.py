from pathlib import Path

import pyarrow as pa
import pytest

from tasks.queries import saved_questions, sql


@pytest.fixture
def check(tmp_path: Path) -> saved_questions.Query:
    path = tmp_path / "large_target.sql"
    path.write_text(
        "-- one row per target that is too large.\n"
        "-- $limit: int = 50 (the largest)\n"
        "select target from (from train union all from test) where target > $limit order by all\n"
    )
    return saved_questions.load_check(path)


def test_a_check_selects_the_rows_that_break_the_rule(check):
    with sql.connect({}) as tables:
        sql.register(tables, "train", pa.table({"target": [6, 51]}))
        sql.register(tables, "test", pa.table({"target": [60, 50]}))
        assert sql.violations(tables, check)["target"].to_list() == [51, 60]
        assert sql.violations(tables, check, {"limit": 55})["target"].to_list() == [60]
        assert sql.violations(tables, check, {"limit": 60}).is_empty()


def test_a_table_that_was_not_added_is_named(check):
    with sql.connect({}) as tables:
        sql.register(tables, "train", pa.table({"target": [6, 51]}))
        with pytest.raises(ValueError, match=r"test does not exist.*\(there are: train\)"):
            sql.violations(tables, check)


def test_a_check_reads_no_files(tmp_path):
    (tmp_path / "secret.csv").write_text("a\n1\n")
    path = tmp_path / "nosy.sql"
    path.write_text(f"-- one row per line.\nselect * from '{tmp_path}/secret.csv'\n")
    with sql.connect({}) as tables, pytest.raises(ValueError, match=r"secret\.csv"):
        sql.violations(tables, saved_questions.load_check(path))
