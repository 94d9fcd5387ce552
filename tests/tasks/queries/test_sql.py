import contextlib
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flows.cli.main import run_command
from rl_core.checkpoints.store import save_checkpoint
from rl_core.runs.rollout_log import RolloutLog
from rl_core.runs.run_folder import RunFolder
from rl_core.schema import EVALUATION, ROLLOUTS
from rl_core.types import Completion, Problem, Rollout, ScoredText
from tasks.queries import saved_questions, sql
from tasks.queries.render import render
from tests.support.checkpoint_files import writer
from tests.support.runs import new_run, write_rollouts

ANSWERS = yaml.safe_load((Path(__file__).parent / "answers.yaml").read_text())


@pytest.fixture(scope="module")
def empty_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("no_runs")


def rounded(rows: Iterable[Iterable[Any]]) -> list[list[Any]]:
    return [[round(x, 4) if isinstance(x, float) else x for x in row] for row in rows]


@pytest.mark.parametrize("query", saved_questions.list_queries(), ids=lambda query: query.name)
def test_saved_question_gives_the_hand_computed_answer(query, tested_runs, tmp_path, capsys):
    expected = ANSWERS[query.name]
    answer = sql.ask(query.name, expected.get("ask", {}), root=tested_runs)
    assert rounded(answer.select(expected["columns"]).rows()) == rounded(expected["rows"])
    assert query.description.startswith("one row per ")
    assert "Ask it " in query.description
    assert sql.ask(query.name, root=tmp_path / "nothing").is_empty()
    program, command, *words = shlex.split(query.example)
    assert (program, command, words[0]) == ("countdown-train", "sql", query.name)
    assert run_command([command, *words, f"storage.root={tested_runs}"]) == 0
    assert capsys.readouterr().out


def test_one_run_by_name_or_latest(shared_runs):
    def runs(run: str | None) -> list[str]:
        found = sql.run_query("select run_id from runs", root=shared_runs, run=run)
        return found["run_id"].to_list()

    assert runs(None) == ["alpha", "beta"]
    assert runs("alpha") == ["alpha"]
    assert runs("latest") == ["beta"]
    counted = sql.run_query("select count(*) from rollouts", root=shared_runs, run="latest")
    assert counted.item() == 1
    with pytest.raises(ValueError, match=r"no run 'alhpa' in .*; did you mean alpha\?"):
        runs("alhpa")


def test_turns_are_rows_and_a_response_in_one_go_is_one(shared_runs):
    turns = sql.run_query(
        "select turn, author, tokens, text, reward, verdict from turns where step = 3 "
        "and run_id = 'alpha' and prompt_index = 5 order by sample_index, turn",
        root=shared_runs,
    )
    assert turns.rows() == [
        (1, "model", 2, "turn 0", 0.0, "correct"),
        (2, "env", 1, "turn 1", 0.25, "correct"),
        (3, "model", 3, "turn 2", 0.5, "correct"),
        (1, "model", 64, "response 3.1.1", 0.0, "no_answer"),
    ]
    tokens = "select sum(tokens) from turns union all select sum(response_tokens) from rollouts"
    (of_turns,), (whole,) = sql.run_query(tokens, root=shared_runs).rows()
    assert of_turns == whole


def test_a_slow_question_prints_nothing_of_its_own(tmp_path):
    assert not sql.run_query("select current_setting('enable_progress_bar')", root=tmp_path).item()


def test_without_any_run_all_views_are_empty_with_their_columns(tmp_path):
    empty = {view: sql.run_query(f"from {view}", root=tmp_path) for view in sql.VIEWS}
    assert all(frame.is_empty() for frame in empty.values())
    assert empty["rollouts"].columns == [*ROLLOUTS.names, "target"]
    assert empty["evaluations"].columns == [*EVALUATION.names, "counts"]
    with pytest.raises(ValueError, match=r"no run in .* yet"):
        sql.run_query("from runs", root=tmp_path, run="latest")


def test_unknown_names_suggest_the_nearest(shared_runs):
    with pytest.raises(ValueError, match=r"'learning_curv'; did you mean learning_curve\?"):
        sql.ask("learning_curv", root=shared_runs)
    with pytest.raises(ValueError, match=r"no parameter 'limt'; did you mean limit\?"):
        sql.ask("longest_responses", {"limt": "3"}, root=shared_runs)
    with pytest.raises(ValueError, match="parameter limit=many does not read as int"):
        sql.ask("longest_responses", {"limit": "many"}, root=shared_runs)


def test_parameters_are_values_never_sql(shared_runs):
    hostile = "correct' or 1=1 --"
    assert sql.ask("samples_of_a_verdict", {"verdict": hostile}, root=shared_runs).is_empty()
    assert sql.run_query("select $days + 1 as n", {"days": 2}, root=shared_runs).item() == 3


@pytest.mark.parametrize(
    "statement",
    [
        "drop view runs",
        "select 1; select 2",
        "",
        "copy (select 1) to '{out}'",
        "with a as (copy (select 1) to '{out}') select * from a",  # a SELECT to DuckDB 2
        "with a as (insert into runs values (1) returning *) select * from a",
        "attach '{out}'",
        "install httpfs",
        "set enable_external_access = true",
        "select * from read_text('{secret}')",
        "select * from read_parquet('{secret}')",
        "from '{secret}'",
        "select * from glob('/*')",
        "select * from shared_runs",  # a Python variable
        "select nonsense from runs",
        "selec 1",
    ],
)
def test_only_a_select_over_the_views_is_answered(statement, shared_runs, tmp_path):
    out, secret = tmp_path / "out.csv", tmp_path / "secret.parquet"
    pq.write_table(pa.table({"x": [1]}), secret)
    with pytest.raises(ValueError, match=r".") as caught:
        sql.run_query(statement.format(out=out, secret=secret), root=shared_runs)
    assert "\n" not in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize(
    "statement", ["select '1 day'::interval", "select 1::union(a int)", "select '\udcff'"]
)
def test_what_cannot_be_shown_is_refused_in_words(statement, tmp_path, capfd):
    assert run_command(["sql", "-q", statement, f"storage.root={tmp_path}"]) == 2
    said = capfd.readouterr().err
    assert "cast it to text, COLUMN::varchar" in said or "no UTF-8" in said


_PIECES = [
    *["select ", "from ", "rollouts ", "metrics ", ",", "(", ")", "[", "]", "{", "}", "'", '"'],
    *["*", "1", "99999999999999999999", "1e999", "null", "'nan'::double", "$a", "$1", "?", "::"],
    *["blob ", "interval ", "map ", "union ", "enum ", "hugeint ", "json ", "decimal(38,10) "],
    *["order by ", "limit ", "group by all ", "values ", "describe ", "summarize ", "pivot "],
    *["x -> x", ";", "--", "range(3)", "unnest", "\x00", "\ud800", "\U0001f600", "/*", "*/"],
    *["copy ", "error('x')", "date ", "read_csv('/etc/passwd')", "query_table", "cast(", " as "],
    *["'infinity'::timestamp", "now()", "[1,2]", "{'a':1}", "map{'a':1}", "'x'::blob"],
    *["'1 day'::interval", "with t as (", "bit "],
]


@pytest.mark.parametrize("value", ["'infinity'::timestamp", "'-infinity'::date"])
def test_a_date_that_python_does_not_have_is_refused_in_words(empty_root, value):
    with pytest.raises(ValueError, match=r"column x .* cast it to text, \"x\"::varchar"):
        sql.run_query(f"select {value} as x", root=empty_root)
    shown = sql.run_query(f"select ({value})::varchar as x, null::date as y", root=empty_root)
    assert b"infinity" in render(shown, "json", width=120)
    last = sql.run_query("select '9999-12-31 23:59:59'::timestamp as x", root=empty_root)
    assert b"9999-12-31" in render(last, "json", width=120)
    nested = sql.run_query(f"select [{value}] as x", root=empty_root)
    with pytest.raises(ValueError, match="cast it to text"):
        render(nested, "json", width=120)


@settings(max_examples=20)  # each opens a database
@given(st.lists(st.one_of(st.sampled_from(_PIECES), st.text(max_size=3)), max_size=8).map(" ".join))
def test_any_select_is_answered_or_refused_in_words(empty_root, text):
    for statement in (text, f"select {text}"):
        with contextlib.suppress(ValueError):
            render(sql.run_query(statement, root=empty_root), "json", width=120)


def test_a_name_given_as_a_value_reads_its_view_too(shared_runs):
    by_value = "select count(*) from query_table('roll' || 'outs')"
    assert sql.run_query(by_value, root=shared_runs).item() == 13


def test_files_of_older_versions_and_odd_folders_answer(tmp_path):
    root = tmp_path / "it's [odd]*"
    row = {"verdict": "correct", "response_tokens": 3, "epoch": 0}
    write_rollouts(root / "runs" / "new", [row])
    file = write_rollouts(root / "runs" / "old", [row])
    few = pq.read_table(file, columns=["run_id", "step", "verdict", "response_tokens"])
    pq.write_table(few, file)
    both = [("new", 0, 1, 3), ("old", None, 1, 3)]
    spent = sql.ask("tokens_spent", root=root)
    assert spent.select("run_id", "epoch", "rollouts", "response_tokens").rows() == both
    select = "select verdict, value, truth, target from rollouts"
    assert sql.run_query(select, root=root, run="old").rows() == [("correct", None, None, None)]
    (old,) = sql.ask("tokens_spent", root=root, run="old").rows(named=True)
    assert (old["epoch"], old["rollouts"], old["tokens_per_correct"]) == (None, 1, 3.0)


def rollout(verdict: str, index: int, value: str | None = None) -> Rollout:
    return Rollout(
        problem=Problem(index, "countdown", (), {"target": 35, "numbers": [3, 14, 7]}, 1),
        group_id=index,
        sample_index=0,
        prompt_text="p",
        prompt_ids=(1, 2),
        completion=Completion(np.array([3, 4]), np.array([-0.5, -0.25], np.float32), "stop"),
        response_text="r",
        scored=ScoredText(float(verdict == "correct"), verdict, None, value),
    )


def test_how_far_off_wrong_answers_are_can_be_asked(tmp_path):
    log = new_run(tmp_path, "alpha").rollouts
    for step, value in enumerate(("77/2", "29", None, "9" * 400), start=1):
        log.write(step, 0, [rollout("wrong_value", 0, value)], {})
    asked = (
        "select least(abs(value - target) // 5 * 5, 100) as off, count(*) from rollouts "
        "where verdict = 'wrong_value' and value is not null group by off order by off"
    )
    assert sql.run_query(asked, root=tmp_path).rows() == [(3.5, 1), (6.0, 1)]
    truths = sql.run_query("select distinct truth, target from rollouts", root=tmp_path)
    assert truths.rows() == [('{"numbers": [3, 14, 7], "target": 35}', 35.0)]


def test_a_saved_question_writes_and_opens_no_file(shared_runs, tmp_path, monkeypatch):
    """Even if its words were a stranger's."""
    secret = tmp_path / "secret.parquet"
    pq.write_table(pa.table({"x": [1]}), secret)
    for select in (
        f"select x, (select count(*) from rollouts) from read_parquet('{secret}')",
        f"with a as (copy (select 1) to '{tmp_path}/out.csv') select * from a, rollouts",
    ):
        query = saved_questions.Query("bad", "rollouts", "", "", (), select)
        monkeypatch.setattr(sql, "load_query", lambda name, query=query: query)
        with pytest.raises(ValueError, match="disabled by configuration"):
            sql.ask("bad", root=shared_runs)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.parquet"]


def test_reads_what_a_run_really_writes_while_it_writes(tmp_path):
    run = new_run(tmp_path, "live")
    metrics = run.path / "metrics.jsonl"
    for step in (1, 2):
        run.rollouts.write(step, 0, [rollout("correct", 0), rollout("no_answer", step)], {})
        run.held_out.write(step, [rollout("correct", 0), rollout("no_answer", 1)])
        run.metrics.append(step, {"reward/accuracy": 0.5, "critic/kl": float("nan")})
        metrics.write_text(metrics.read_text() + '{"step": 3, "rew')
        shares = sql.ask("verdict_shares_by_step", root=tmp_path)
        assert shares.group_by("step").len().sort("step").rows() == [
            (s + 1, 2) for s in range(step)
        ]
        curve = sql.ask("learning_curve", root=tmp_path, run="live")
        assert curve["accuracy"].to_list() == [0.5] * step
        solved = sql.ask("solved_and_lost", root=tmp_path).select("prompt_index", "times_solved")
        assert solved.rows() == [(0, step), (1, 0)]
        run.metrics.cut_after(step)
    save_checkpoint(run.path, 2, writer(), 0.5)
    found = sql.run_query(
        "select step, accuracy, is_best, is_latest from checkpoints", root=tmp_path
    )
    assert found.rows() == [(2, 0.5, True, True)]
    overview = sql.ask("runs_overview", root=tmp_path)
    assert overview.select("run_id", "status", "steps").rows() == [("live", "running", 2)]


@pytest.mark.parametrize(("last_score", "best"), [(0.2, 2), (0.3, 2), (0.4, 4)])
def test_of_equal_tests_the_higher_score_is_the_best(two_runs, last_score, best):
    """Not the test before the first step, which has no checkpoint."""
    metrics = RunFolder(two_runs / "runs" / "beta").metrics
    metrics.cut_after(1)  # and half a line that is being written
    for step, score in ((2, 0.3), (4, last_score)):
        metrics.append(step, {"val/accuracy": 0.125, "val/score": score})  # as before training
    (row,) = (r for r in sql.ask("compare_runs", root=two_runs).to_dicts() if r["run_id"] == "beta")
    assert (row["best_test"], row["best_at_step"]) == (0.125, best)


def test_a_question_spills_into_a_folder_that_nobody_foresees_or_reads(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = set()
    for _ in range(2):
        with sql.connect({}) as connection:
            (found,) = connection.sql("select current_setting('temp_directory')").fetchall()
            (folder,) = tmp_path.iterdir()
            assert found == (str(folder),)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            names.add(folder.name)
    assert len(names) == 2
    assert not list(tmp_path.iterdir())


def test_a_query_sees_each_row_once_while_files_are_cut(tmp_path):
    logs = [RolloutLog(tmp_path / "runs" / f"r{i}" / "rollouts", f"r{i}") for i in range(4)]
    for log in logs:
        for step in range(1, 13):
            write_rollouts(log.folder.parent, [{"prompt_index": 0}] * 3, step)
    code = f"""
from pathlib import Path
from rl_core.runs.rollout_log import remove_after
print("ready", flush=True)
for i in range(4):
    remove_after(Path({str(tmp_path)!r}) / "runs" / f"r{{i}}" / "rollouts", 11)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    asked, seen = "select run_id, step, count(*) as num from rollouts group by all", []
    while process.poll() is None or not seen:
        answer = sql.run_query(asked, root=tmp_path)
        assert set(answer["num"]) == {3}
        seen.append(answer.height)
    assert process.returncode == 0
    assert seen == sorted(seen, reverse=True)
    assert set(seen) <= {48, 47, 46, 45, 44}
    assert sql.run_query(asked, root=tmp_path).height == 44
