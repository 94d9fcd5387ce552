"""Evaluation whose processes are killed one after the other, or that is asked to stop."""

import logging
from pathlib import Path

import pytest
from prefect import flow

from flows import countdown_train as module
from flows.runs.run_record import recorded
from flows.settings.compose import compose
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.data.dataset import write_dataset
from rl_core.evaluation.rows import read_rows
from rl_core.runs.run_folder import RunFolder
from tests.conftest import build_tiny_model
from tests.support.checkpoint_files import copying
from tests.support.programs import MAIN, begun, cli, living
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("prefect_harness"),
]

MARKER = "TEST_EVALUATION_MARKER"
VICTIMS = {"Ray's head": "gcs/gcs_server", "evaluator": "tasks.supervision.child evaluator"}
ENGINE = "RolloutActor"


class Killer(logging.Handler):
    """Kills one process of each evaluation, each time that Ray is up, until no victim is left.

    In the last one it kills the engine, once that is ready.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = list(VICTIMS.values())

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message == "Ray is up" and self.left:
            self._kill(self.left.pop(0))
        elif message == "engine_0 is ready" and not self.left:
            self._kill(ENGINE)

    def _kill(self, part: str) -> None:
        wait_for(lambda: living(MARKER, part=part), 120, poll_s=0.05, seen=lambda: part)
        for victim in living(MARKER, part=part):
            victim.kill()


def trained(root: Path, overrides: list[str], checkpoint: Path) -> tuple[RunConfig, RunFolder]:
    """Returns a run that was trained, to a model of random weights, and its settings."""
    settings = [*overrides, "rollout.engine=hf", "retry.delay_s=0", "run_id=r"]
    config = compose([*settings, f"storage.root={root}"])
    run = RunFolder.create(config)
    save_checkpoint(run.path, 7, copying(checkpoint), 0.5)
    return config, run


def evaluated(config: RunConfig, run: RunFolder, data: Path) -> None:
    """Evaluates in a flow run as the pipeline does."""

    @flow
    def evaluating() -> None:
        with recorded(run):
            model_path = Path(str(config.model.path))
            module.retried_evaluate(config, run)(config, run, data, model_path)

    evaluating()


@pytest.mark.chaos
def test_whatever_is_killed_the_rows_are_the_same(tmp_path, tiny_overrides, survived, monkeypatch):
    build_tiny_model(tmp_path / "trained", seed=1)
    whole, whole_run = trained(tmp_path / "whole", tiny_overrides, tmp_path / "trained")
    data = tmp_path / "data"
    write_dataset(whole.env, whole.data, data)
    evaluated(whole, whole_run, data)
    assert whole_run.read().reason is None

    monkeypatch.setenv(MARKER, "1")
    config, run = trained(tmp_path / "killed", tiny_overrides, tmp_path / "trained")
    killer, logger = Killer(), logging.getLogger("tasks.evaluate")
    logger.addHandler(killer)
    try:
        evaluated(config, run, data)
    finally:
        logger.removeHandler(killer)
    assert killer.left == []
    assert living(MARKER) == []

    for name in ("base", "step_000007"):
        rows, expected = (
            read_rows(folder.path / "eval" / f"{name}.parquet") for folder in (run, whole_run)
        )
        assert len(rows) > 0
        assert rows == expected
    record = run.read()
    assert record.status == "finished"
    again = "evaluation was repeated: "
    assert record.reason == f"{again}evaluator died"
    assert "engine_0 has started again" in (run.path / "log.txt").read_text()
    for name in (*VICTIMS, "engine"):
        survived("SIGKILL", f"{name}, in evaluation")


def test_a_stop_ends_the_evaluator_and_a_repeat_goes_on(tmp_path, tiny_overrides, tiny_model_path):
    changes = {"data.test_size": 400, "evaluation.samples_per_problem": 64}
    much = [text for text in tiny_overrides if text.partition("=")[0] not in changes]
    much += [f"{name}={value}" for name, value in changes.items()]
    config, run = trained(tmp_path / "stopped", much, tiny_model_path)
    write_dataset(config.env, config.data, tmp_path / "data")
    run.update(model=str(tiny_model_path), data=str(tmp_path / "data"))
    command, more = ["evaluate", "run_id=r", f"storage.root={config.storage.root}"], {MARKER: "1"}
    output = tmp_path / "output"
    with (
        output.open("w") as file,
        begun(MAIN, *command, more=more, stdout=file, stderr=file) as process,
    ):
        wait_for(
            lambda: "engine_0 is ready" in output.read_text() or process.poll() is not None,
            seen=output.read_text,
        )
        process.terminate()
        assert process.wait(120) == 1, output.read_text()
    assert output.read_text().endswith("countdown-train: interrupted: SIGTERM\n")
    assert living(MARKER) == []

    few = ["evaluation.samples_per_problem=2", "evaluation.max_problems=8"]
    assert cli(*command, *few, more=more).returncode == 0
    # Other settings than the run's own: beside its evaluation, which is still to come.
    (beside,) = (path for path in (run.path / "eval").iterdir() if path.is_dir())
    assert len(list(beside.glob("*.parquet"))) == 2
    assert run.read().accuracy_after is None
