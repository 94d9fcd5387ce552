import pytest

from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs.lock import close_lost_runs, owned, started, training
from rl_core.runs.run_folder import RunFolder
from tests.support.programs import begun
from tests.support.runs import new_run

HOLDER = """
import sys, time
from pathlib import Path
from rl_core.runs.lock import owned
from rl_core.runs.run_folder import RunFolder
with owned(RunFolder(Path(sys.argv[1]))):
    print("held", flush=True)
    time.sleep(1000)
"""


def test_a_run_whose_process_was_killed_is_interrupted(tmp_path):
    run = new_run(tmp_path, "a")
    with begun(HOLDER, run.path) as holder:
        assert holder.stdout.readline() == "held\n"
        run.metrics.append(3, {})
        close_lost_runs(tmp_path)
        assert run.read().status == "running"
        with pytest.raises(ValueError, match="another process is at work on run a"), owned(run):
            pass
    close_lost_runs(tmp_path)
    record = run.read()
    assert (record.status, record.steps) == ("interrupted", 3)
    assert record.reason == (
        "its process is gone (killed?); the same command, or run_id=a, resumes"
    )
    assert record.finished_at is not None


def test_a_run_that_is_taken_up_while_it_is_closed_as_lost_says_running(tmp_path):
    run = new_run(tmp_path, "a")
    with owned(run):
        pass
    close_lost_runs(tmp_path)
    assert run.read().status == "interrupted"
    config = RunConfig(run_id="a", storage=StorageConfig(root=tmp_path))
    with started(config):
        close_lost_runs(tmp_path)
        assert run.read().status == "running"
        assert run.read().reason is None


def test_a_refused_second_start_changes_nothing_of_the_run_that_goes_on(tmp_path):
    run = new_run(tmp_path, "a")
    before = {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    other = RunConfig(run_id="a", seed=9, storage=StorageConfig(root=tmp_path))
    with owned(run), pytest.raises(ValueError, match="another process is at work"), started(other):
        pass
    after = {path.name: path.read_bytes() for path in run.path.iterdir() if path.is_file()}
    assert after.pop(".owner")
    assert after == before
    with started(other):  # once it is free, its settings are today's
        assert "seed: 9" in (run.path / "config.yaml").read_text()
    assert len(run.read().attempts) == 2


def test_runs_that_cannot_be_judged_or_are_over_stay_as_they_are(tmp_path):
    close_lost_runs(tmp_path)  # there are none
    new_run(tmp_path, "never-held")
    elsewhere = new_run(tmp_path, "elsewhere")
    with owned(elsewhere):
        pass
    (elsewhere.path / ".owner").write_text("another-machine")
    over = new_run(tmp_path, "over")
    with owned(over):
        over.update(status="finished")
    (tmp_path / "runs" / "no-run").mkdir()
    close_lost_runs(tmp_path)
    status = {f.name: RunFolder(f).read().status for f in (tmp_path / "runs").glob("*[!n]/")}
    assert status.pop("over") == "finished"
    assert set(status.values()) == {"running"}


def test_a_second_trainer_waits_and_then_gives_up(tmp_path):
    run = new_run(tmp_path, "a")
    with (
        training(run, wait_s=0),
        pytest.raises(ValueError, match="another process is at work on run a"),
        training(run, wait_s=0.3),
    ):
        pass
    with training(run, wait_s=0):
        pass
