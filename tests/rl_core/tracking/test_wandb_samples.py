from typing import Any

import pytest

from rl_core.runs.run_folder import RunFolder
from rl_core.tracking import wandb_tracker
from rl_core.tracking.wandb_tracker import wandb_tracking
from rl_core.types import Rollout
from tests.rl_core.tracking.test_wandb_tracker import (
    LIMIT_S,
    a_run,
    do_steps,
    expected,
    scores_by_step,
)
from tests.support.fake_wandb import API_KEY, FakeWandb


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setattr(wandb_tracker, "FINISH_TIMEOUT_S", float(LIMIT_S))


def do_tested_step(run: RunFolder, step: int, rollouts: list[Rollout]) -> None:
    run.rollouts.write(step, 0, rollouts, {})
    run.metrics.append(step, {"critic/score/mean": step / 100, "val/accuracy": 0.5})


def sampled(server: FakeWandb, run: str = "my-run") -> dict[int, list[list[Any]]]:
    """The tables of samples by step."""
    return {row["_step"]: server.table(row) for row in server.rows(run) if "samples" in row}


@pytest.mark.slow
def test_each_test_sends_a_table_of_samples_once_also_after_a_resume(
    tmp_path, monkeypatch, caplog, make_rollout
):
    config, run = a_run(tmp_path)
    rollout = make_rollout([1, 2], [3, 4], score=0.5, verdict="wrong_value")
    cells = [rollout.prompt_text, rollout.response_text, rollout.scored.answer, "wrong_value", 0.5]
    with FakeWandb() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        with wandb_tracking(config, run.path):
            run.metrics.append(0, {"val/accuracy": 0.25})  # nothing was rolled out before it
            do_tested_step(run, 1, [rollout, rollout])
            do_steps(run, 2, 3)
        run.cut_after(1)
        with wandb_tracking(config, run.path):
            do_steps(run, 2, 3)
            do_tested_step(run, 4, [rollout])
        assert sampled(server) == {1: [[1, *cells]] * 2, 4: [[4, *cells]]}
        tables = [path for path in server.paths if "table" in path]
        assert len(tables) == len(set(tables)) == 2
    assert [row["step"] for row in run.metrics.read()] == [0, 1, 2, 3, 4]
    assert caplog.messages == []
    assert not (run.path / "wandb" / "uploading").exists()


@pytest.mark.slow
def test_a_table_that_wandb_refuses_costs_a_warning_and_no_step(
    tmp_path, monkeypatch, caplog, make_rollout
):
    config, run = a_run(tmp_path)
    with FakeWandb(takes_tables=False) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        with wandb_tracking(config, run.path):
            do_tested_step(run, 1, [make_rollout([1], [2])])
            do_steps(run, 2, 3)
        assert scores_by_step(server) == expected(1, 3)
        assert sampled(server) == {}
    (said,) = caplog.messages
    assert said.startswith("wandb: no samples of step 1: ")
