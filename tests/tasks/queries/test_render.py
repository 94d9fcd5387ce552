import csv
import io
import json

import polars as pl
import pytest

from tasks.queries import saved_questions, sql
from tasks.queries.render import render, render_queries


def test_output_formats_hold_the_same_rows(shared_runs):
    frame = sql.ask("longest_responses", {"limit": 2}, root=shared_runs)
    as_csv = list(csv.DictReader(io.StringIO(render(frame, "csv", width=80).decode())))
    assert [row["response_tokens"] for row in as_csv] == ["64", "50"]
    assert json.loads(render(frame, "json", width=80)) == frame.to_dicts()
    assert pl.read_parquet(render(frame, "parquet", width=80)).equals(frame)


def test_table_fits_the_terminal_and_defuses_model_text():
    frame = pl.DataFrame(
        {
            "share": [0.123456, None] + [0.0] * 10,
            "text": ["\x1b[31mred\n" + "x" * 300, "[bold]short[/bold]"] + [""] * 10,
            "other": ["y" * 300, "z"] + [""] * 10,
        }
    )
    lines = render(frame, "table", width=60).decode().splitlines()
    assert max(len(line) for line in lines) <= 60
    assert lines[1].split()[0] == "0.1235"
    assert "\\x1b[31mred⏎xx" in lines[1]
    assert "\x1b" not in "".join(lines)
    assert lines[2].split()[:2] == ["-", "[bold]short[/bold]"]
    assert lines[-1] == "(12 rows)"


def test_of_a_night_a_terminal_gets_both_ends():
    frame = pl.DataFrame({"step": range(1_000)})
    lines = render(frame, "table", width=60, most_rows=4).decode().split("\n")
    assert [line.strip() for line in lines[:-2]] == ["step", "0", "1", "⋮", "998", "999"]
    assert lines[-2] == "(1000 rows, the first and last 2 here: --format csv has all)"
    assert render(frame, "table", width=60).decode().count("\n") == 1_002
    assert render(frame.head(4), "table", width=60, most_rows=4).decode().endswith("3\n(4 rows)\n")


@pytest.mark.parametrize(
    ("columns", "output_format", "expected"),
    [
        (
            {"name": ["日本", "ab"], "n": [1, 22]},
            "table",
            "name   n\n日本   1\nab    22\n(2 rows)\n",
        ),
        ({"step": [], "share": []}, "table", "step  share\n(no rows)\n"),
        ({}, "table", "(no rows)\n"),
        ({"n": [[1, 2]]}, "csv", 'n\n"[1, 2]"\n'),
    ],
    ids=["wide characters are aligned", "columns of no rows", "no column", "nested values in CSV"],
)
def test_small_answers_as_they_are_printed(columns, output_format, expected):
    assert render(pl.DataFrame(columns), output_format, width=40).decode() == expected


def test_few_long_texts_are_shown_in_full():
    frame = pl.DataFrame({"step": [3], "response": ["\x1b[31m1 + 2\n" + "word " * 50]})
    lines = render(frame, "table", width=60).decode().splitlines()
    assert max(len(line) for line in lines) <= 60
    assert lines[1].split() == ["step", "3"]
    assert lines[-1] == "(1 row)"
    assert lines[2].split(maxsplit=1) == ["response", "\\x1b[31m1 + 2"]
    assert " ".join(lines).split().count("word") == 50


def test_a_table_that_is_too_wide_tells_once_what_all_rows_share_and_folds_its_head():
    frame = pl.DataFrame(
        {
            "run_id": ["20261121-190817-astonishing-dodo"] * 12,
            "mean_response_tokens": [1.5] * 12,
            "checkpoint": [f"step_{step:06d}" for step in range(12)],
        }
    )
    assert render(frame, "table", width=120).decode().splitlines()[0].split() == frame.columns
    lines = render(frame, "table", width=30).decode().splitlines()
    assert lines[0] == "run_id: 20261121-190817-astonishing-dodo"
    head = ["mean_", "response_", "tokens checkpoint", "1.5 step_000000"]
    assert [" ".join(line.split()) for line in lines[1:5]] == head
    assert lines[-2].split() == ["1.5", "step_000011"]
    assert max(map(len, lines[1:])) <= 30


def test_a_few_rows_that_do_not_fit_stand_below_each_other():
    frame = pl.DataFrame({f"measure_{i}": [0.5, 0.25] for i in range(9)})
    lines = render(frame, "table", width=60).decode().splitlines()
    first = ["-- 1 --", "measure_0 0.5", "measure_1 0.5"]
    assert [" ".join(line.split()) for line in lines[:3]] == first
    assert lines[-1] == "(2 rows)"


def test_list_of_queries_names_each_with_its_parameters():
    text = render_queries(saved_questions.list_queries(), width=100)
    assert "-p min_attempts=2  -p limit=20" in text
    for query in saved_questions.list_queries():
        assert f"  {query.name} " in text


def test_no_text_becomes_a_formula_of_a_spreadsheet():
    """Texts that a model wrote; numbers stay what they are."""
    defused = ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1"]
    texts = [*defused, "-2.5e3", "+7", "plain", None]
    frame = pl.DataFrame({"=head": texts, "number": [-1.5 * i for i in range(len(texts))]})
    rows = list(csv.reader(io.StringIO(render(frame, "csv", width=80).decode())))
    assert rows[0] == ["'=head", "number"]
    shown = [f"'{text}" for text in defused]
    assert [row[0] for row in rows[1:]] == [*shown, "-2.5e3", "+7", "plain", ""]
    assert [float(row[1]) for row in rows[1:]] == frame["number"].to_list()
    assert json.loads(render(frame, "json", width=80))[0]["=head"] == "=1+1"
