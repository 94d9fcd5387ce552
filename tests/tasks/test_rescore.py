from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rl_core.config.run import RunConfig
from rl_core.data.dataset import read_problems, write_dataset
from rl_core.envs.countdown import Countdown
from rl_core.runs.run_folder import RunFolder
from tasks.queries import sql
from tasks.rescore import rescore_run
from tests.support.runs import write_rollouts

SOLVED = "<answer>{}</answer>"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run of two rollouts: one answers in its last line, the other keeps talking after it."""
    sizes = {"train_size": 8, "test_size": 2, "train_batch_size": 2}
    settings = {"run_id": "one", "storage": {"root": tmp_path}, "data": sizes}
    config = RunConfig.model_validate(settings | {"actor": {"mini_batch_size": 2}})
    run = RunFolder.create(config)
    data = tmp_path / "data" / "puzzles"
    write_dataset(Countdown(), config.data, data)
    run.update(data=str(data), model="none")
    about = pq.read_table(data / "train.parquet")["extra_info"].to_pylist()
    first, second = read_problems(data / "train.parquet")[:2]
    rows = [
        {
            "prompt_index": problem.index,
            "group_id": i,
            "response": SOLVED.format(about[i]["solution"]) + after,
            "verdict": "correct",
            "score": 1.0,
        }
        for i, (problem, after) in enumerate([(first, ""), (second, "\nThat is it.")])
    ]
    write_rollouts(run.path, rows)
    return run


def test_a_changed_reward_scores_what_lies_there(cli, run, tmp_path):
    said = cli("rescore", "one", "env.answer_from=last_line").out
    assert "env.answer_from=last_line  correct" in said
    moved = sql.ask("rescored", root=tmp_path).select(
        "verdict_before", "verdict_after", "rollouts", "score_after"
    )
    assert moved.rows() == [("correct", "correct", 1, 1.0), ("correct", "no_answer", 1, 0.0)]

    cli("rescore", "latest", "env.full_score=2")
    again = sql.ask("rescored", {"settings": "env.full_score=2"}, root=tmp_path)
    assert again["score_after"].to_list() == [2.0]
    stored = sql.run_query("select verdict, score from rollouts", root=tmp_path)
    assert stored.rows() == [("correct", 1.0)] * 2  # what training saw stays


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["one"], "rescore takes RUN and what changes"),
        (["env.full_score=2"], "rescore takes RUN and what changes"),
        (["one", "actor.lr=2"], "actor.lr=2 changes no reward"),
        (["two", "env.full_score=2"], "no run 'two'"),
        (["one", "env.full_scor=2"], "did you mean env.full_score?"),
    ],
)
def test_what_makes_no_sense_ends_with_2(cli, run, words, said):
    assert said in cli("rescore", *words, code=2).err
    assert not (run.path / "rescored").exists()


def test_scores_of_rollouts_that_aged_out_are_kept(cli, run, tmp_path):
    """Nobody can score them anew; those of rollouts that are there are replaced."""
    first = run.path / "rollouts" / "step_000001.parquet"
    later = [row | {"step": 2} for row in pq.read_table(first).to_pylist()]
    write_rollouts(run.path, later, step=2)
    cli("rescore", "one", "env.answer_from=last_line")
    question = "select step, verdict from rescores order by step, group_id"
    before = sql.run_query(question, root=tmp_path).rows()
    assert [step for step, _ in before] == [1, 1, 2, 2]
    first.unlink()
    cli("rescore", "one", "env.answer_from=last_line")
    assert sql.run_query(question, root=tmp_path).rows() == before


def test_two_changes_never_share_a_file(run, tmp_path):
    """Their names differ in characters that a file's name had better not hold."""
    config = RunConfig.model_validate({"storage": {"root": tmp_path}})
    data = tmp_path / "data" / "puzzles"
    files = {rescore_run(config, run, data, change) for change in ("a:b", "a/b", "a:b")}
    assert sorted(pq.read_table(file)["changed"][0].as_py() for file in files) == ["a/b", "a:b"]
