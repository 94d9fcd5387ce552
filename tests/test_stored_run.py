"""A run that an older version wrote: report and sql read it, training does not continue."""

import re
import shutil
from html import escape
from pathlib import Path

import polars as pl
import pytest

from flows.cli.main import run_command
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tasks.queries import sql
from tasks.queries.saved_questions import SQL_FOLDER
from tasks.report_page.data import gather
from tasks.report_page.page import render_html

README = Path(__file__).parent / "stored_run" / "README.md"
STORED = README.parent / "storage"
TOPICS = ("evaluation", "metrics", "rollouts", "runs")


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stored run where it was made: in `outputs/` of the working folder."""
    root = tmp_path / "outputs"
    shutil.copytree(STORED, root, symlinks=True)
    monkeypatch.chdir(tmp_path)
    return root


@pytest.mark.parametrize(
    "name", sorted(file.stem for topic in TOPICS for file in (SQL_FOLDER / topic).glob("*.sql"))
)
def test_every_saved_question_reads_it(name):
    sql.ask(name, root=STORED)


def test_the_page_of_sql_names_each_column_of_each_view():
    page = (README.parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
    told = {
        view: re.findall(r"`(\w+)`", columns)
        for view, columns in re.findall(r"^\| `(\w+)` \|.*\|(.*)\|$", page, re.MULTILINE)
    }
    views = [file.stem for file in (SQL_FOLDER / "views").glob("*.sql")]
    assert told == {
        view: sql.run_query(f"select * from {view} limit 0", root=STORED).columns for view in views
    }


def test_its_report_tells_problems_of_samples_and_both_counts(outputs):
    log = outputs / "runs" / "stored" / "log.txt"
    log.write_text("2026-11-25T15:46:00Z WARNING rl_core.any: something is odd\n")
    run = RunFolder(outputs / "runs" / "stored")
    assert {one.problem for one in gather(run).samples} == {""}, "rows of that day had no truth"
    for file in (run.path / "rollouts").glob("*.parquet"):
        truth = pl.lit('{"numbers": [3, 14, 7], "target": 35}')
        pl.read_parquet(file).with_columns(truth=truth).write_parquet(file)
    data = gather(run)
    assert {one.problem for one in (*data.samples, *data.best)} == {"3, 14, 7 -> 35"}
    assert data.phases[-1]["total_s"] == pytest.approx(
        run.read().timings_s["train"] - sum(row["total_s"] for row in data.phases[:-1])
    )
    assert sum(row["share"] for row in data.phases) == pytest.approx(1)
    page = render_html(data)
    assert "on 32 problems</dd>" in page
    assert f'<span class="muted">{escape(data.samples[0].problem)}</span>' in page
    diagnosis, _, _ = page.partition("<h2>Diagnosis</h2>")[2].partition("<h2>")
    assert "something is odd" in diagnosis
    assert "<details" not in diagnosis


def test_its_answers_are_those_of_the_day_it_was_made():
    def ask(name: str, *columns: str) -> list[tuple[object, ...]]:
        return sql.ask(name, root=STORED).select(pl.col(columns).round(4)).rows()

    assert ask("learning_curve", "accuracy", "test_accuracy", "score") == [
        (None, 0.4375, None),
        (0.7188, None, 0.7469),
        (0.4688, 0.4375, 0.5187),
        (0.5938, None, 0.6344),
        (0.375, 0.4688, 0.4344),
    ]
    select = "select verdict, count(*) from rollouts group by verdict order by verdict"
    assert sql.run_query(select, root=STORED).rows() == [
        ("correct", 69),
        ("no_answer", 2),
        ("wrong_numbers", 27),
        ("wrong_value", 30),
    ]
    won = sql.ask("won_and_lost", root=STORED)
    assert won.group_by("change").len().sort("change").rows() == [("lost", 1), ("won", 2)]


def test_it_is_listed_and_reported(outputs, capsys):
    assert run_command(["runs"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("stored"))
    assert {"finished", "0.4375"} <= set(row.split())
    assert run_command(["report", "stored"]) == 0
    page = (outputs / "runs" / "stored" / "report.html").read_text(encoding="utf-8")
    assert all(accuracy in page for accuracy in ("0.438", "0.469"))


@pytest.mark.parametrize("words", [["train", "run_id=stored"], ["evaluate", "run_id=stored"]])
def test_training_does_not_go_on(outputs, capsys, words):
    before = {file: file.stat().st_mtime_ns for file in outputs.rglob("*")}
    assert run_command(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "run stored was made by an older version (it has env.reward_workers)" in line
    assert line.endswith("report and sql read it, training does not continue")
    assert {file: file.stat().st_mtime_ns for file in outputs.rglob("*")} == before


def test_a_start_under_its_name_is_refused_too(outputs):
    config = RunConfig.model_validate({"run_id": "stored", "storage": {"root": "outputs"}})
    with pytest.raises(ValueError, match=r"older version .* training does not continue"):
        RunFolder.create(config)
