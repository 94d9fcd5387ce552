"""How many problems a test during training asks: not how many answers are kept of it."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.checkpoints.store import save_checkpoint
from rl_core.runs.run_folder import RunFolder
from tasks.export import model_card
from tasks.queries.checkpoint_names import find_model
from tasks.queries.run_tables import num_tested
from tests.support.runs import new_run


def run_that_tests(root: Path, *, rows: int, kept: int, most: int = 1_024) -> RunFolder:
    """A run with so many test problems, of which a test asks `most`, and keeps some answers."""
    run = new_run(root, trainer={"test_problems": most})
    data = root / "data" / "some"
    data.mkdir(parents=True)
    pq.write_table(pa.table({"x": range(rows)}), data / "test.parquet")
    run.held_out.folder.mkdir()
    answers = pa.table({"prompt_index": range(kept)})
    pq.write_table(answers, run.held_out.folder / "step_000000.parquet")
    run.update(data=str(data))
    return run


@pytest.mark.parametrize(
    ("rows", "kept", "most", "count"),
    [(512, 128, 1_024, 512), (512, 128, 200, 200), (512, 60, 60, 60), (128, 128, 1_024, 128)],
)
def test_all_problems_of_a_test_count(tmp_path, rows, kept, most, count):
    run = run_that_tests(tmp_path, rows=rows, kept=kept, most=most)
    assert num_tested(run.path) == count


@pytest.mark.parametrize(("kept", "count"), [(128, None), (60, 60), (0, None)])
def test_without_its_data_set_only_fewer_answers_than_are_kept_tell_it(tmp_path, kept, count):
    run = run_that_tests(tmp_path, rows=512, kept=kept)
    shutil.rmtree(tmp_path / "data")
    assert num_tested(run.path) == count


@pytest.mark.timeout(60)
def test_neither_is_a_pipe_waited_for_nor_a_link_followed(tmp_path):
    run = run_that_tests(tmp_path, rows=512, kept=60)
    (tmp_path / "data" / "some" / "test.parquet").unlink()
    os.mkfifo(tmp_path / "data" / "some" / "test.parquet")
    assert num_tested(run.path) == 60
    answers = run.held_out.folder / "step_000000.parquet"
    answers.rename(tmp_path / "elsewhere")
    answers.symlink_to(tmp_path / "elsewhere")
    assert num_tested(run.path) is None


def test_a_card_has_the_accuracy_of_the_best_checkpoint_though_the_last_was_evaluated(
    tmp_path, tiny_model_path
):
    run = run_that_tests(tmp_path, rows=512, kept=128)
    for step, accuracy in ((20, 411 / 512), (25, 406 / 512)):
        save_checkpoint(
            run.path,
            step,
            lambda to: shutil.copytree(tiny_model_path, to, dirs_exist_ok=True),
            accuracy,
        )
    card = model_card(
        find_model("r/best", tmp_path),
        tmp_path,
        holds="Weights in bfloat16",
        library="transformers",
    )
    assert "| step_000020 | 512 | 0.803 | 0.766 to 0.835 |" in card
    assert "measured by a test during training, on the first 512 test problems" in card
    assert "not evaluated" not in card
    shutil.rmtree(tmp_path / "data")
    card = model_card(
        find_model("r/best", tmp_path),
        tmp_path,
        holds="Weights in bfloat16",
        library="transformers",
    )
    assert "It was not evaluated: `countdown-train evaluate r/step_000020` does that." in card
