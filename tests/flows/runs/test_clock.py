"""A CLOCK that is set back by an hour during a run: nothing is lost, and no time is negative."""

from datetime import UTC, datetime, timedelta

import pytest

from flows.cli.watch import view
from flows.runs import run_record
from flows.runs.run_record import choose_run, recorded
from flows.runs.summary import summary_lines
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.runs import lock, metrics_log, run_folder
from rl_core.runs.lock import started
from tasks.queries.sql import ask
from tasks.report import write_report


def test_a_run_whose_clock_is_set_back_ends_and_goes_on_as_any_other(tmp_path, monkeypatch):
    config = RunConfig(run_id="r", storage=StorageConfig(root=tmp_path))

    def an_hour_ago() -> str:
        return (datetime.now(UTC) - timedelta(hours=1)).isoformat(timespec="milliseconds")

    def stopped() -> None:
        with started(config) as run, recorded(run) as stage, stage("train"):
            run.metrics.append(1, {"val/accuracy": 0.25, "timing_s/step": 2.0})
            for module in (metrics_log, run_folder, run_record, lock):
                monkeypatch.setattr(module, "utc_now", an_hour_ago)
            run.metrics.append(2, {"val/accuracy": 0.5, "timing_s/step": 2.0})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    run = run_folder.RunFolder.under(tmp_path, "r")
    record = run.read()
    assert record.finished_at is not None
    assert record.finished_at < record.started_at
    assert 0 <= record.timings_s["train"] < 60
    (row,) = ask("runs_overview", root=tmp_path).to_dicts()
    assert row["minutes"] == 0
    assert row["steps"] == 2
    assert [row["step"] for row in run.metrics.read()] == [1, 2]
    view(run)
    summary_lines(run)
    assert write_report(run.path).html.exists()
    assert choose_run(config.model_copy(update={"run_id": None}), "new").run_id == "r"
    with started(config) as run, recorded(run):
        run.cut_after(1)
    assert run.read().status == "finished"
