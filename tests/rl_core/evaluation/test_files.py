from functools import partial
from typing import Any

from rl_core.evaluation.rows import EvaluationFiles, evaluation_of, label_rows, read_rows
from tests.support.faults import kills_at_each_event


def rows(model: str, evaluation: str, num_problems: int) -> list[dict[str, Any]]:
    """Of a run: one greedy answer per problem."""
    answers = [{"mode": "greedy", "prompt_index": i} for i in range(num_problems)]
    return label_rows(
        answers, run_id="r", model=model, step=1, evaluation=evaluation, num_problems=num_problems
    )


def lying_there(files: EvaluationFiles) -> dict[str, tuple[str, int]]:
    """Evaluation and number of rows by file."""
    return {
        str(file.relative_to(files.folder)): (evaluation_of(file), len(read_rows(file)))
        for file in sorted(files.folder.rglob("*.parquet"))
        if not file.name.startswith(".")
    }


def test_each_evaluation_has_a_folder_and_the_own_one_the_first(tmp_path):
    files = EvaluationFiles(tmp_path / "eval")
    assert files.own() is None
    assert files.find("base", "a") is None
    files.write(rows("base", "a", 9), is_own=True)
    files.write(rows("base", "b", 2), is_own=False)
    files.write(rows("best", "b", 2), is_own=False)
    files.write(rows("best", "a", 9), is_own=False)  # what lies in the own place belongs there
    assert lying_there(files) == {
        "b/base.parquet": ("b", 2),
        "b/best.parquet": ("b", 2),
        "base.parquet": ("a", 9),
        "best.parquet": ("a", 9),
    }
    assert files.find("base", "b") == tmp_path / "eval" / "b" / "base.parquet"
    assert files.find("base", "a") == tmp_path / "eval" / "base.parquet"
    (tmp_path / "eval" / "base.html").touch()
    files.write(rows("base", "b", 2), is_own=True)
    assert lying_there(files) == {
        "a/base.parquet": ("a", 9),
        "a/best.parquet": ("a", 9),
        "b/best.parquet": ("b", 2),
        "base.parquet": ("b", 2),
    }
    assert (tmp_path / "eval" / "a" / "base.html").exists()


def test_a_write_killed_at_any_system_event_loses_no_evaluation(tmp_path):
    for folder, kill in kills_at_each_event(tmp_path, more_than=5):
        files = EvaluationFiles(folder)
        for model in ("base", "best"):
            files.write(rows(model, "a", 9), is_own=True)
        kill(partial(files.write, rows("base", "b", 2), is_own=True))
        kept = [files.find(model, "a") for model in ("base", "best")]
        assert [len(read_rows(file)) for file in kept if file is not None] == [9, 9]
        files.write(rows("base", "b", 2), is_own=True)
        assert lying_there(files) == {
            "a/base.parquet": ("a", 9),
            "a/best.parquet": ("a", 9),
            "base.parquet": ("b", 2),
        }
