from pathlib import Path

import pytest

from flows.evaluate import render
from rl_core.checkpoints.store import save_checkpoint
from rl_core.evaluation.summary import compare, summarise
from tasks.evaluate import Evaluated
from tests.rl_core.evaluation.test_summary import row
from tests.support.runs import new_run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["against=alpha"], "against= compares with checkpoint=: name that, too"),
        (["checkpoint="], "'checkpoint=' is not KEY=VALUE"),
        (["checkpoint=a", "checkpoint=b"], "checkpoint is given twice: 'checkpoint=b' too"),
        (["chekpoint=alpha"], "unknown setting 'chekpoint'; did you mean checkpoint?"),
        (["checkpoint=alpha", "aganst=b"], "unknown setting 'aganst'; did you mean against?"),
        (["checkpoint=alpha", "evaluation.max_problem=1"], "did you mean evaluation.max_problems?"),
        (["checkpoint=champion"], "no champion in"),
        (["checkpoint=alpha/step_000009"], "no checkpoint 'step_000009' (there are: step_000005)"),
        (["checkpoint=alpha", "env=gsm8k"], "env cannot change: these are settings of a run"),
        (["checkpoint=alpha", "against=/no/such/model"], "checkpoint=/no/such/model is no folder"),
    ],
)
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
    assert "1 to 2 solutions (2)" in "\n".join(lines)
    assert lines[-4:] == [
        "r/step_000005 against Qwen/Qwen2.5-0.5B: better "
        "(p = 0.0078, 8 problems won and 0 lost of 8)",
        "",
        "rows: a.parquet",
        "rows: b.parquet",
    ]
