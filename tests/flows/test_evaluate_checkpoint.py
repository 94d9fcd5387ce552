from pathlib import Path

import pytest
import yaml

from flows.evaluate import render
from rl_core.checkpoints.store import save_checkpoint
from rl_core.evaluation.summary import compare, summarise
from tasks.evaluate import Evaluated
from tests.rl_core.evaluation.test_summary import row
from tests.support.runs import new_run

TABLES = yaml.safe_load((Path(__file__).with_name("cli") / "tables.yaml").read_text())


@pytest.mark.parametrize(("arguments", "words"), TABLES["no evaluation"])
def test_mistakes_are_one_line(fails, tmp_path, arguments, words):
    run = new_run(tmp_path, "alpha")
    save_checkpoint(run.path, 5, lambda folder: (folder / "w").touch(), 0.5)
    (line,) = fails("evaluate", *arguments).splitlines()
    assert words in line


def test_other_commands_do_not_take_the_arguments(fails):
    assert "unknown setting 'checkpoint'" in fails("config", "checkpoint=alpha")


def test_the_table_has_a_row_per_number_and_the_verdict_below():
    one = [row(i, "correct") for i in range(1, 9)]
    other = [row(i, "no_answer") for i in range(1, 9)]
    files = (Path("a.parquet"), Path("b.parquet"))
    evaluated = Evaluated((summarise(one), summarise(other)), files, compare(one, other))
    lines = render(evaluated, ["r/step_000005", "Qwen/Qwen2.5-0.5B"]).splitlines()
    cells = [line.split("  ") for line in lines]
    assert [[cell.strip() for cell in line if cell] for line in cells][:5] == [
        ["r/step_000005", "Qwen/Qwen2.5-0.5B"],
        ["problems", "8", "8"],
        ["accuracy", "1.000 (0.676 to 1.000)", "0.000 (0.000 to 0.324)"],
        ["strict", "1.000 (0.676 to 1.000)", "0.000 (0.000 to 0.324)"],
        ["lenient", "1.000 (0.676 to 1.000)", "0.000 (0.000 to 0.324)"],
    ]
    assert "3 numbers (8)" in "\n".join(lines)
    assert "2-3 solutions (2)" in "\n".join(lines)
    assert lines[-4:] == [
        "r/step_000005 against Qwen/Qwen2.5-0.5B: better "
        "(p = 0.0078, 8 problems won and 0 lost of 8)",
        "",
        "rows: a.parquet",
        "rows: b.parquet",
    ]
