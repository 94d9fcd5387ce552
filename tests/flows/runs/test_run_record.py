import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from prefect.exceptions import TerminationSignal

from flows import countdown_train
from flows.cli import stages
from flows.errors import BadInputError, RunFailedError
from flows.runs.run_record import choose_run, recorded
from flows.settings.compose import compose
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.lock import started
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


def test_commands_of_one_second_have_names_of_their_own(tmp_path):
    names = {choose_run(settings(tmp_path), None).run_id for _ in range(8)}
    assert len(names) == 8
    # Settings accept them: a time, and two words.
    assert all(
        re.fullmatch(r"\d{8}-\d{6}-[a-z]+-[a-z]+", RunConfig(run_id=x).run_id) for x in names
    )


def test_what_a_stage_did_for_another_one_counts_there_alone(tmp_path, monkeypatch):
    run = RunFolder.create(settings(tmp_path, run_id="a"))
    clock = iter([10.0, 40.0, 50.0, 51.0])
    with recorded(run) as stage, monkeypatch.context() as patch:
        patch.setattr("flows.runs.run_record.time.monotonic", lambda: next(clock))
        with stage("train"):
            run.update(timings_s={"evaluate": 20.0})
        with stage("evaluate"):
            pass
    assert run.read().timings_s == {"train": 10.0, "evaluate": 21.0}


def test_a_failure_is_recorded_with_its_reason_and_its_traceback(tmp_path):
    error = RuntimeError("the disk\nis on fire")
    run = leave(settings(tmp_path), "a", error)
    record = run.read()
    assert (record.status, record.reason) == ("failed", "RuntimeError: the disk is on fire")
    assert "train" in record.timings_s
    log = (run.path / "log.txt").read_text()
    assert "Traceback" in log
    assert "raise error" in log
    assert error.__notes__ == [f"log: {run.path / 'log.txt'}"]


def test_a_failure_that_quotes_a_secret_passes_it_on_to_nobody(tmp_path, monkeypatch):
    monkeypatch.setenv("SMTP_PASS", "hunter2hunter2")
    signed = "https://b.s3/k?X-Amz-Signature=abcdef0123"
    error = RuntimeError(f"hunter2hunter2 was refused at {signed} and redis://:p/7qw@h")
    run = leave(settings(tmp_path), "a", error)
    written = "".join(file.read_text() for file in run.path.glob("*.*") if file.name != ".reserve")
    for secret in ("hunter2", "abcdef0123", "p/7qw"):
        assert secret not in written
        assert secret not in str(error)  # which is what Prefect makes the run's state of


@pytest.mark.parametrize(
    ("signal", "name"),
    [
        (KeyboardInterrupt(), "Ctrl-C"),
        (KeyboardInterrupt("SIGTERM"), "SIGTERM"),
        (TerminationSignal(15), "SIGTERM"),
    ],
)
def test_a_signal_is_an_interruption_and_says_how_to_go_on(tmp_path, signal, name):
    record = leave(settings(tmp_path), "a", signal).read()
    assert record.status == "interrupted"
    assert name in record.reason
    assert "run_id=a" in record.reason


@pytest.mark.parametrize(
    ("saved", "again"), [(3, None), (2, "step 3"), (1, "steps 2 to 3"), (None, "steps 1 to 3")]
)
def test_a_stop_that_could_not_save_says_which_steps_are_done_again(tmp_path, saved, again):
    run = RunFolder.create(settings(tmp_path, run_id="a"))
    for step in range(4):
        run.metrics.append(step, {})
    if saved is not None:
        save_checkpoint(run.path, saved, lambda folder: None, None)
    record = leave(settings(tmp_path), "a", TerminationSignal(15)).read()
    assert ("again" in record.reason) == (again is not None)
    if again is not None:
        assert f"resumes and does {again} again" in record.reason
        assert "trainer.stop_grace_s" in record.reason


def test_the_stages_of_a_continued_run_add_up(tmp_path):
    run = leave(settings(tmp_path), "a", KeyboardInterrupt())
    run.update(timings_s={"train": 100.0})
    again = leave(settings(tmp_path), "a", None).read()
    assert 100 <= again.timings_s["train"] < 105
    why = "continued after: stopped by Ctrl-C"
    assert [attempt.reason for attempt in again.attempts] == ["started", why]


def start_by_a_flow(config: RunConfig) -> None:
    """As `run`, `nightly`, a deployment and Retry in the UI do."""
    with pytest.raises(ValueError, match="another process is at work on run a: wait for it"):
        countdown_train.run_pipeline(config)


def start_by_train(config: RunConfig) -> None:
    with pytest.raises(RunFailedError, match="another process is at work on run a: wait for it"):
        stages.train([f"storage.root={config.storage.root}", "run_id=a", "seed=9"])


@pytest.mark.parametrize("start", [start_by_a_flow, start_by_train])
def test_no_second_start_changes_the_record_of_a_run_that_goes_on(start, tmp_path, monkeypatch):
    monkeypatch.setattr(countdown_train, "tag_flow_run", lambda config: None)
    monkeypatch.setattr(countdown_train, "Chain", lambda: lambda task, *given: None)
    monkeypatch.setattr(stages, "_ready", lambda overrides, look: compose(overrides))
    with started(settings(tmp_path, run_id="a")) as run:
        before = {file.name: file.read_bytes() for file in run.path.iterdir()}
        start(settings(tmp_path, run_id="a", seed=9))
        assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before
    assert len(run.read().attempts) == 1


@pytest.mark.parametrize(
    ("changes", "flow_run", "chosen"),
    [
        ({}, "flow-run", "first"),
        ({"seed": 1}, "flow-run", "flow-run"),  # other settings
        ({"run_id": "b"}, "flow-run", "b"),
        ({"seed": 1}, "1: my/run", "1-my-run"),  # a folder's name
    ],
)
def test_a_run_is_continued_or_gets_a_name(tmp_path, changes, flow_run, chosen):
    leave(settings(tmp_path), "first", KeyboardInterrupt())
    found = choose_run(settings(tmp_path, **changes), flow_run)
    assert found == settings(tmp_path, **changes | {"run_id": chosen})


def test_a_run_is_continued_where_its_folder_was_moved_to(tmp_path):
    leave(settings(tmp_path / "old"), "first", KeyboardInterrupt())
    (tmp_path / "old").rename(tmp_path / "new")
    assert choose_run(settings(tmp_path / "new"), "flow-run").run_id == "first"


def test_a_retry_of_a_flow_run_goes_on_with_its_own_run(tmp_path):
    leave(settings(tmp_path), "flow-run", RuntimeError("x"))
    leave(settings(tmp_path), "another", KeyboardInterrupt())
    assert choose_run(settings(tmp_path), "flow-run").run_id == "flow-run"


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"seed": 1})])
def test_what_is_no_run_of_today_is_passed_over(tmp_path, text):
    run = leave(settings(tmp_path), "broken", KeyboardInterrupt())
    (run.path / "config.yaml").write_text(text)
    assert choose_run(settings(tmp_path), "flow-run").run_id == "flow-run"


def test_a_finished_run_that_nothing_can_go_on_from_is_not_started_anew(tmp_path):
    """Its checkpoints were deleted for the room: from step 0 on, training would cut its logs."""
    config = settings(tmp_path, run_id="a")
    run = RunFolder.create(config)
    save_checkpoint(run.path, 3, lambda folder: (folder / "w").touch(), 0.5)
    run.metrics.append(3, {"val/accuracy": 0.5})
    run.update(status="finished", steps=3)
    assert choose_run(config, None) == config
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(BadInputError, match="no checkpoint is there to continue from after step 3"):
        choose_run(config, None)
    run.update(status="failed")  # a crash before its first checkpoint: it begins anew
    assert choose_run(config, None) == config


def test_no_training_goes_on_from_an_imported_log(tmp_path):
    log = tmp_path / "verl.log"
    log.write_text("step:1 - critic/score/mean:0.1\nstep:2 - critic/score/mean:0.2\n")
    run = import_log(log, root=tmp_path, run_id="verl")
    before = run.metrics.path.read_bytes()
    with pytest.raises(BadInputError, match=r"run verl is an imported log: .* another run_id=NAME"):
        choose_run(settings(tmp_path, run_id="verl"), None)
    assert run.metrics.path.read_bytes() == before
