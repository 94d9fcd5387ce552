from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import TerminationSignal

from flows.errors import BadInputError
from flows.runs.run_record import choose_run, recorded
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tasks.importers.console_log import import_log


def settings(root: Path, **changes: Any) -> RunConfig:
    return RunConfig(storage=StorageConfig(root=root), **changes)


def leave(config: RunConfig, run_id: str, error: BaseException | None) -> RunFolder:
    """A run of these settings that ended like this."""
    run = RunFolder.create(config.model_copy(update={"run_id": run_id}))
    expected = nullcontext() if error is None else pytest.raises(type(error))
    with expected, recorded(run) as stage, stage("train"):
        if error is not None:
            raise error
    return run


def test_a_run_that_ends_well_is_finished_with_its_stages_timed(tmp_path: Path) -> None:
    record = leave(settings(tmp_path), "a", None).read()
    assert (record.status, record.reason) == ("finished", None)
    assert record.finished_at is not None
    assert record.timings_s.keys() == {"train"}
    assert 0 <= record.timings_s["train"] < 5


def test_a_failure_is_recorded_with_its_reason_and_its_traceback(tmp_path: Path) -> None:
    error = RuntimeError("the disk\nis on fire")
    run = leave(settings(tmp_path), "a", error)
    record = run.read()
    assert (record.status, record.reason) == ("failed", "RuntimeError: the disk is on fire")
    assert "train" in record.timings_s
    log = (run.path / "log.txt").read_text()
    assert "Traceback" in log
    assert "raise error" in log
    assert error.__notes__ == [f"log: {run.path / 'log.txt'}"]


@pytest.mark.parametrize(
    ("signal", "name"),
    [
        (KeyboardInterrupt(), "Ctrl-C"),
        (KeyboardInterrupt("SIGTERM"), "SIGTERM"),
        (TerminationSignal(15), "SIGTERM"),
    ],
)
def test_a_signal_is_an_interruption_and_says_how_to_go_on(
    tmp_path: Path, signal: BaseException, name: str
) -> None:
    record = leave(settings(tmp_path), "a", signal).read()
    assert record.status == "interrupted"
    assert record.reason is not None
    assert name in record.reason
    assert "run_id=a" in record.reason


@pytest.mark.parametrize(
    ("saved", "again"), [(3, None), (2, "step 3"), (1, "steps 2 to 3"), (None, "steps 1 to 3")]
)
def test_a_stop_that_could_not_save_says_which_steps_are_done_again(
    tmp_path: Path, saved: int | None, again: str | None
) -> None:
    run = RunFolder.create(settings(tmp_path, run_id="a"))
    for step in range(4):
        run.metrics.append(step, {})
    if saved is not None:
        save_checkpoint(run.path, saved, lambda folder: None, None)
    record = leave(settings(tmp_path), "a", TerminationSignal(15)).read()
    assert record.reason is not None
    assert ("again" in record.reason) == (again is not None)
    if again is not None:
        assert f"resumes and does {again} again" in record.reason
        assert "trainer.stop_grace_s" in record.reason


def test_the_stages_of_a_continued_run_add_up(tmp_path: Path) -> None:
    run = leave(settings(tmp_path), "a", KeyboardInterrupt())
    run.update(timings_s={"train": 100.0})
    again = leave(settings(tmp_path), "a", None).read()
    assert 100 <= again.timings_s["train"] < 105
    assert [attempt.reason for attempt in again.attempts] == ["started", "continued"]


def test_a_given_run_id_stands(tmp_path: Path) -> None:
    leave(settings(tmp_path), "a", KeyboardInterrupt())
    assert choose_run(settings(tmp_path, run_id="b"), "flow-run").run_id == "b"


def test_an_interrupted_run_of_the_same_settings_is_continued(tmp_path: Path) -> None:
    leave(settings(tmp_path), "first", KeyboardInterrupt())
    chosen = choose_run(settings(tmp_path), "flow-run")
    assert chosen.run_id == "first"
    assert chosen.model_copy(update={"run_id": None}) == settings(tmp_path)


def test_other_settings_start_a_new_run(tmp_path: Path) -> None:
    leave(settings(tmp_path), "first", KeyboardInterrupt())
    assert choose_run(settings(tmp_path, seed=1), "flow-run").run_id == "flow-run"


@pytest.mark.parametrize("error", [None, RuntimeError("x")])
def test_only_an_interrupted_run_is_continued_and_only_the_latest(
    tmp_path: Path, error: BaseException | None
) -> None:
    first = leave(settings(tmp_path), "first", KeyboardInterrupt())
    first.update(started_at="2020-01-01T00:00:00+00:00")
    leave(settings(tmp_path), "second", error)
    assert choose_run(settings(tmp_path), "flow-run").run_id == "flow-run"


def test_a_retry_of_a_flow_run_goes_on_with_its_own_run(tmp_path: Path) -> None:
    leave(settings(tmp_path), "flow-run", RuntimeError("x"))
    leave(settings(tmp_path), "another", KeyboardInterrupt())
    assert choose_run(settings(tmp_path), "flow-run").run_id == "flow-run"


def test_a_flow_runs_name_becomes_a_folders_name(tmp_path: Path) -> None:
    assert choose_run(settings(tmp_path), "1: my/run").run_id == "1-my-run"


def test_outside_of_a_flow_run_the_name_is_new_each_time(tmp_path: Path) -> None:
    name = choose_run(settings(tmp_path), None).run_id
    assert name is not None
    assert RunConfig(run_id=name).run_id == name


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"seed": 1})])
def test_what_is_no_run_of_today_is_passed_over(tmp_path: Path, text: str) -> None:
    run = leave(settings(tmp_path), "broken", KeyboardInterrupt())
    (run.path / "config.yaml").write_text(text)
    assert choose_run(settings(tmp_path), "flow-run").run_id == "flow-run"


def test_a_finished_run_that_nothing_can_go_on_from_is_not_started_anew(tmp_path: Path) -> None:
    """Its checkpoints were deleted for the room: from step 0 on, training would cut its logs."""
    config = settings(tmp_path, run_id="a")
    run = RunFolder.create(config)
    save_checkpoint(run.path, 3, lambda folder: (folder / "w").touch(), 0.5)
    run.metrics.append(3, {"val/accuracy": 0.5})
    run.update(status="finished", steps=3)
    assert choose_run(config, None) == config
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(BadInputError, match="no checkpoint is there to go on from after step 3"):
        choose_run(config, None)
    run.update(status="failed")  # a crash before its first checkpoint: it begins anew
    assert choose_run(config, None) == config


def test_no_training_goes_on_from_an_imported_log(tmp_path: Path) -> None:
    log = tmp_path / "verl.log"
    log.write_text("step:1 - critic/score/mean:0.1\nstep:2 - critic/score/mean:0.2\n")
    run = import_log(log, root=tmp_path, run_id="verl")
    before = run.metrics.path.read_bytes()
    with pytest.raises(BadInputError, match=r"run verl is an imported log: .* another run_id=NAME"):
        choose_run(settings(tmp_path, run_id="verl"), None)
    assert run.metrics.path.read_bytes() == before
