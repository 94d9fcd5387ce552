"""The table of how a run continues: the same in the help, the docs and the report."""

from pathlib import Path

from rl_core.config.run import MAY_DIFFER
from rl_core.runs.ways_on import COLUMNS, NOTES, WAYS_ON
from tasks.report import write_report
from tests.support.runs import new_run

ROOT = Path(__file__).parents[3]


def test_help_docs_and_report_show_the_same_table(cli, tmp_path):
    shown = " ".join(cli("run", "--help", root=None).out.split())
    page = (ROOT / "docs" / "survives.md").read_text()
    report = write_report(new_run(tmp_path).path).html.read_text()
    for row in (COLUMNS, *WAYS_ON):
        assert " ".join(row) in shown
        assert f"| {' | '.join(row)} |" in page
    for row in WAYS_ON:
        assert all(f'<td class="words">{cell}</td>' in report for cell in row)
    for note in NOTES:
        assert note in shown
        assert note in page


def test_the_note_names_all_settings_that_may_differ():
    names = [
        name
        for section, fields in MAY_DIFFER.items()
        for name in ([f"{section}.*"] if fields is True else [f"trainer.{x}" for x in fields])
        if section != "run_id"
    ]
    assert [name for name in names if name not in NOTES[1]] == []
    assert NOTES[1].count("*") == len([name for name in names if name.endswith("*")])
