"""Evaluation whose processes are killed one after the other, or that is asked to stop."""

import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from tests.support.programs import living

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("prefect_harness"),
]

COMMAND = [sys.executable, "-c", "from flows.cli.main import main; main()"]
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
        deadline = time.monotonic() + 120
        while not (found := living(MARKER, part=part)):
            assert time.monotonic() < deadline, part
            time.sleep(0.05)
        for victim in found:
            victim.send_signal(signal.SIGKILL)


@contextmanager
def listening(handler: logging.Handler) -> Iterator[None]:
    logger = logging.getLogger("tasks.evaluate")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def trained(root: Path, overrides: list[str], checkpoint: Path) -> tuple[RunConfig, RunFolder]:
    """Returns a run that was trained, to a model of random weights, and its settings."""
    settings = [*overrides, "rollout.engine=hf", "retry.delay_s=0", "run_id=r"]
    config = compose([*settings, f"storage.root={root}"])
    run = RunFolder.create(config)

    def write(folder: Path) -> None:
        shutil.copytree(checkpoint, folder, dirs_exist_ok=True)

    save_checkpoint(run.path, 7, write, 0.5)
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
    killer = Killer()
    with listening(killer):
        evaluated(config, run, data)
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


def test_a_stop_ends_the_evaluator_and_can_be_gone_on_from(
    tmp_path, tiny_overrides, tiny_model_path
):
    changes = {"data.test_size": 400, "evaluation.samples_per_problem": 64}
    much = [text for text in tiny_overrides if text.partition("=")[0] not in changes]
    much += [f"{name}={value}" for name, value in changes.items()]
    config, run = trained(tmp_path / "stopped", much, tiny_model_path)
    write_dataset(config.env, config.data, tmp_path / "data")
    run.update(model=str(tiny_model_path), data=str(tmp_path / "data"))
    command = [*COMMAND, "evaluate", "run_id=r", f"storage.root={config.storage.root}"]
    environment = os.environ | {"PYTHONPATH": str(Path.cwd()), MARKER: "1"}
    output = tmp_path / "output"
    with (
        output.open("w") as file,
        subprocess.Popen(command, env=environment, stdout=file, stderr=file) as process,
    ):
        while "engine_0 is ready" not in output.read_text():
            assert process.poll() is None, output.read_text()
            time.sleep(0.1)
        process.terminate()
    assert process.returncode == 1
    assert output.read_text().endswith("countdown-train: interrupted: SIGTERM\n")
    assert living(MARKER) == []

    few = ["evaluation.samples_per_problem=2", "evaluation.max_problems=8"]
    subprocess.run([*command, *few], env=environment, stdout=subprocess.DEVNULL, check=True)
    # Other settings than the run's own: beside its evaluation, which is still to come.
    (beside,) = (path for path in (run.path / "eval").iterdir() if path.is_dir())
    assert len(list(beside.glob("*.parquet"))) == 2
    assert run.read().accuracy_after is None
