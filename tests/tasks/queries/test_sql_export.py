import json
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb

from flows.cli.main import run_command
from tasks.queries import saved_questions, sql

SHELL = Path(sys.executable).parent / "duckdb"


def test_any_client_opens_the_catalogue_and_sees_later_rollouts(two_runs):
    """DuckDB's own shell, of another version than the library that wrote the file."""
    file = two_runs / "catalog.duckdb"
    sql.export_catalog(two_runs, file)
    question = "select run_id, count(*) as n from rollouts group by all order by all"

    def ask(select: str) -> list[dict[str, object]]:
        command = [SHELL, "-readonly", "-json", file, "-c", select]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        answer: list[dict[str, object]] = json.loads(done.stdout)
        return answer

    assert ask(question) == [{"run_id": "alpha", "n": 12}, {"run_id": "beta", "n": 1}]
    assert ask("select status from runs order by run_id") == [
        {"status": "finished"},
        {"status": "running"},
    ]
    assert ask("select count(*) as n from metrics where metric = 'val/accuracy'") == [{"n": 3}]
    rollouts = two_runs / "runs" / "beta" / "rollouts"
    shutil.copy(rollouts / "step_000001.parquet", rollouts / "step_000002.parquet")
    assert ask(question)[1] == {"run_id": "beta", "n": 2}


def test_every_saved_question_answers_over_the_catalogue(tested_runs, tmp_path):
    file = tmp_path / "catalog.duckdb"
    sql.export_catalog(tested_runs, file)
    with duckdb.connect(str(file), read_only=True) as connection:
        seen = set()
        for query in saved_questions.list_queries():
            rows = connection.execute(query.sql, query.bind({}) or None).fetchall()
            if query.topic not in seen:  # the views are the same, and asking takes a while
                assert len(rows) == sql.ask(query.name, root=tested_runs).height, query.name
            seen.add(query.topic)


def test_without_runs_the_views_are_there_and_empty(tmp_path):
    file = tmp_path / "catalog.duckdb"
    sql.export_catalog(tmp_path / "nothing", file)
    with duckdb.connect(str(file), read_only=True) as connection:
        for view in sql.VIEWS:
            assert connection.execute(f"select count(*) from {view}").fetchone() == (0,)


def test_what_cannot_be_written_is_one_line_and_leaves_nothing(capsys, two_runs, tmp_path):
    target = tmp_path / "no" / "folder" / "x.duckdb"
    arguments = ["sql", f"storage.root={two_runs}", "--export", str(target)]
    assert run_command(arguments) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not target.parent.exists()


def test_only_a_catalogue_is_written_anew(capsys, two_runs, tmp_path):
    def export(file: Path) -> tuple[int, str]:
        code = run_command(["sql", f"storage.root={two_runs}", "--export", str(file)])
        return code, capsys.readouterr().err

    file = tmp_path / "catalog.duckdb"
    assert export(file) == (0, "")
    assert export(file) == (0, "")
    with duckdb.connect(str(file)) as connection:
        connection.execute("create table my_notes as select 'seed 3 is odd' as note")
    code, said = export(file)
    assert code == 2
    assert "also holds my_notes, which would be lost" in said
    with duckdb.connect(str(file), read_only=True) as connection:
        assert connection.execute("select note from my_notes").fetchone() == ("seed 3 is odd",)

    with duckdb.connect(str(tmp_path / "other.duckdb")):
        pass
    rows = two_runs / "runs" / "alpha" / "eval" / "evaluation.parquet"
    for another in (tmp_path / "other.duckdb", rows):
        content = another.read_bytes()
        code, said = export(another)
        assert (code, len(said.splitlines())) == (2, 1)
        assert another.read_bytes() == content
