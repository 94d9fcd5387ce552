"""Runs that were renamed, copied or moved: the folder is the run, whatever its files call it."""

import shutil
from pathlib import Path

import polars as pl
import pytest

from rl_core.runs.run_folder import RunFolder
from tasks.queries import sql
from tasks.report_page.data import gather

STORED = Path(__file__).parents[2] / "stored_run" / "storage" / "runs" / "stored"
SAVED = ("gain_over_base", "still_failing", "runs_overview", "verdict_shares_by_step")
COUNTED = "select run_id, count(*) as n from {} group by run_id order by run_id"
VIEWS = ("rollouts", "evaluations", "held_out", "metrics", "settings", "checkpoints", "runs")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(STORED, tmp_path / "runs" / "stored", symlinks=True)
    return tmp_path


def rows(root: Path, view: str) -> dict[str, int]:
    return dict(sql.run_query(COUNTED.format(view), root=root).rows())


@pytest.mark.parametrize("query", SAVED)
def test_a_renamed_run_answers_as_before(query, root):
    before = sql.ask(query, root=root)
    (root / "runs" / "stored").rename(root / "runs" / "first-night")
    after = sql.ask(query, root=root)
    assert not after.is_empty()
    assert after.equals(before.with_columns(run_id=pl.lit("first-night")))
    assert RunFolder(root / "runs" / "first-night").read().run_id == "first-night"


@pytest.mark.parametrize("view", VIEWS)
def test_a_copy_is_a_run_of_its_own_with_its_own_counts(view, root):
    alone = rows(root, view)["stored"]
    for name in ("it's a copy", "second-night"):
        shutil.copytree(root / "runs" / "stored", root / "runs" / name, symlinks=True)
    assert rows(root, view) == dict.fromkeys(("it's a copy", "second-night", "stored"), alone)
    joined = f"select count(*) from {view} inner join runs using (run_id)"
    assert sql.run_query(joined, root=root).item() == 3 * alone


def test_a_copy_does_not_count_twice_in_a_gain(root):
    before = sql.ask("gain_over_base", root=root).row(0, named=True)
    shutil.copytree(root / "runs" / "stored", root / "runs" / "copy", symlinks=True)
    both = sql.ask("gain_over_base", root=root).to_dicts()
    assert both == [before | {"run_id": "copy"}, before]


def test_the_report_of_a_renamed_run_calls_it_by_its_folder(root):
    (root / "runs" / "stored").rename(root / "runs" / "first-night")
    data = gather(RunFolder(root / "runs" / "first-night"))
    assert data.record.run_id == "first-night"
    assert data.shown["gain"] is not None
    assert data.shown["samples"]
