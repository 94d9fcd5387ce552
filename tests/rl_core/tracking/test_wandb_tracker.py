"""wandb for real, its service included, against servers that work, fail and come back."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_core.config.operations import StorageConfig, TrainerConfig
from rl_core.config.run import RunConfig
from rl_core.runs.metrics_log import MetricsLog
from rl_core.runs.rollout_log import RolloutLog
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking import wandb_tracker
from rl_core.tracking.wandb_process import COLUMNS, NewRows, sample_table
from rl_core.tracking.wandb_tracker import upload_run, wandb_tracking
from rl_core.types import Rollout
from tests.support.fake_wandb import API_KEY, FakeWandb, black_hole, closed_port
from tests.support.programs import begun
from tests.support.waiting import wait_for

SERVICE = "wandb-core"
OURS = "rl_core.tracking.wandb_process"
LIMIT_S = 60


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", API_KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(wandb_tracker, "FINISH_TIMEOUT_S", float(LIMIT_S))


def a_run(root: Path) -> tuple[RunConfig, RunFolder]:
    trainer = TrainerConfig(logger=("wandb",), wandb_mode="online", wandb_project="ours")
    config = RunConfig(run_id="my-run", storage=StorageConfig(root=root), trainer=trainer)
    return config, RunFolder.create(config)


@contextmanager
def wandb_server(monkeypatch: pytest.MonkeyPatch, **how: bool) -> Iterator[FakeWandb]:
    with FakeWandb(**how) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        yield server


def do_steps(run: RunFolder, first: int, last: int) -> None:
    for step in range(first, last + 1):
        run.metrics.append(step, {"critic/score/mean": step / 100, "epoch": 0})


def beside_us() -> list[psutil.Process]:
    """The process that knows wandb, and its service."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name() == SERVICE or OURS in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def scores_by_step(server: FakeWandb) -> list[tuple[int, float]]:
    return [(row["_step"], row["critic/score/mean"]) for row in server.rows("my-run")]


def expected(first: int, last: int) -> list[tuple[int, float]]:
    return [(step, step / 100) for step in range(first, last + 1)]


def files_with(word: str, folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if word.encode() in path.read_bytes()]


@pytest.mark.slow
def test_a_resumed_runs_curve_goes_on_and_has_each_step_once(tmp_path, monkeypatch, caplog):
    config, run = a_run(tmp_path)
    with wandb_server(monkeypatch) as server, run.log_to_file():
        with wandb_tracking(config, run.path):
            do_steps(run, 0, 12)
        assert scores_by_step(server) == expected(0, 12)
        assert server.exit_codes == {"my-run": 0}
        assert server.projects == {"ours"}
        written = [json.loads(line) for line in (run.path / "metrics.jsonl").open()]
        assert [row["_timestamp"] for row in server.rows("my-run")] == pytest.approx(
            [datetime.fromisoformat(row["time"]).timestamp() for row in written]
        )

        run.cut_after(10)  # of a crash at step 12: what follows is done again, and more
        with suppress(KeyError), wandb_tracking(config, run.path):
            do_steps(run, 11, 20)
            raise KeyError
        assert scores_by_step(server) == expected(0, 20)
        assert server.exit_codes == {"my-run": 1}
        assert upload_run(run.path) == ("already", 0, "my-run")

        do_steps(run, 21, 22)
        assert upload_run(run.path) == ("uploaded", 2, "my-run")
        assert scores_by_step(server) == expected(0, 22)
        assert [path for path in server.paths if "otel" in path] == []  # no telemetry
    assert beside_us() == []
    assert caplog.messages == []
    assert not (run.path / "wandb" / "uploading").exists()
    assert files_with(API_KEY, run.path) == []


@pytest.mark.slow
def test_settings_in_the_working_folder_are_not_the_users(tmp_path, monkeypatch):
    """ATTACK: `wandb/settings` of the working folder names a stranger's server."""
    _, run = a_run(tmp_path)
    do_steps(run, 0, 3)
    monkeypatch.delenv("WANDB_BASE_URL")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    with FakeWandb() as server, FakeWandb() as strangers:
        for folder, url in (("config", server.url), ("cwd/wandb", strangers.url)):
            settings = tmp_path / folder / "settings"
            settings.parent.mkdir(parents=True)
            settings.write_text(f"[default]\nbase_url = {url}\n")
        monkeypatch.chdir(tmp_path / "cwd")
        relative = Path(os.path.relpath(run.path))
        assert upload_run(relative) == ("uploaded", 4, "my-run")
        assert scores_by_step(server) == expected(0, 3)
        assert strangers.paths == []


@pytest.mark.slow
def test_no_other_user_and_no_reader_of_command_lines_gets_in(tmp_path, monkeypatch):
    """ATTACK: sockets, command lines and files of wandb's processes, while they are online."""
    config, run = a_run(tmp_path)
    with wandb_server(monkeypatch) as server, run.log_to_file(), wandb_tracking(config, run.path):
        do_steps(run, 0, 3)
        wait_for(lambda: "my-run" in server.lines, LIMIT_S)
        family = beside_us()
        assert {process.name() for process in family} >= {SERVICE}
        for process in family:
            assert API_KEY not in " ".join(process.cmdline())
            for one in process.net_connections("inet"):
                assert one.status != psutil.CONN_LISTEN or one.laddr.ip == "127.0.0.1"
            for one in process.net_connections("unix"):
                assert not _is_open_to_others(str(one.laddr)), one
        assert files_with(API_KEY, run.path) == []


def _is_open_to_others(socket: str) -> bool:
    """Says whether another user may connect: that needs the right to write to a socket's file."""
    if socket.startswith(("@", "\0")):
        return True  # it has no file
    file = Path(socket)
    if not file.is_absolute() or not file.exists():
        return False
    others = [bool(folder.stat().st_mode & 0o001) for folder in file.parents]
    return all(others) and bool(file.stat().st_mode & 0o002)


Happened = Callable[[], object]


@contextmanager
def server_that_resets(after: int) -> Iterator[tuple[str, Happened]]:
    with FakeWandb(resets_after=after) as server:
        yield server.url, lambda: len(server.paths) > after


@contextmanager
def hits(name: str, number: signal.Signals) -> Iterator[tuple[str, Happened]]:
    """A server in order; a process on this side gets a signal once the run has started."""
    with FakeWandb() as server:

        def happened() -> bool:
            if len(server.paths) < STARTED:
                return False
            found = {SERVICE if p.name() == SERVICE else OURS: p for p in beside_us()}
            found[name].send_signal(number)
            return True

        yield server.url, happened


@contextmanager
def nobody(address: Callable[[], AbstractContextManager[str]]) -> Iterator[tuple[str, Happened]]:
    with address() as url:
        yield url, lambda: True


STARTED = 4
"""Requests: the probe, two to start the run, the first of the stream."""
OFFLINE, INCOMPLETE = "wandb: offline in this run", "wandb lacks steps of this run"
Fault = Callable[[], AbstractContextManager[tuple[str, Happened]]]
FAULTS: dict[str, tuple[Fault, str]] = {
    "unreachable": (partial(nobody, closed_port), OFFLINE),
    "black hole": (partial(nobody, black_hole), OFFLINE),
    "resets later": (partial(server_that_resets, STARTED - 1), INCOMPLETE),
    "service killed": (partial(hits, SERVICE, signal.SIGKILL), INCOMPLETE),
    "service hangs": (partial(hits, SERVICE, signal.SIGSTOP), INCOMPLETE),
    "process killed": (partial(hits, OURS, signal.SIGKILL), INCOMPLETE),
}


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_wandb_does_the_run_goes_on_and_its_steps_are_uploaded_later(
    fault, tmp_path, monkeypatch, caplog, survived
):
    serve, said = FAULTS[fault]
    config, run = a_run(tmp_path)
    monkeypatch.setattr(wandb_tracker, "FINISH_TIMEOUT_S", 8.0)
    with serve() as (url, happened), run.log_to_file():
        monkeypatch.setenv("WANDB_BASE_URL", url)
        with wandb_tracking(config, run.path):
            do_steps(run, 1, 20)
            wait_for(happened)
            if said == OFFLINE:
                wait_for(lambda: said in caplog.text)
            do_steps(run, 21, 40)
    assert beside_us() == []
    assert caplog.text.count(said) == 1
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert said in (run.path / "log.txt").read_text()
    assert files_with(API_KEY, run.path) == []
    kept = [(row["step"], row["critic/score/mean"]) for row in run.metrics.read()]
    assert kept == expected(1, 40)

    with wandb_server(monkeypatch) as server:
        assert upload_run(run.path)[0] == "uploaded"
        uploaded = scores_by_step(server)
    assert uploaded == expected(1, 40)
    assert beside_us() == []
    survived("wandb", fault, rows_lost=2 * 40 - len(kept) - len(uploaded))


def do_tested_step(run: RunFolder, step: int, rollouts: list[Rollout]) -> None:
    run.rollouts.write(step, 0, rollouts, {})
    run.metrics.append(step, {"critic/score/mean": step / 100, "val/accuracy": 0.5})


def sampled(server: FakeWandb) -> dict[int, list[list[Any]]]:
    """The tables of samples by step."""
    return {row["_step"]: server.table(row) for row in server.rows("my-run") if "samples" in row}


@pytest.mark.slow
def test_each_test_sends_a_table_of_samples_once_also_after_a_resume(
    tmp_path, monkeypatch, caplog, make_rollout
):
    config, run = a_run(tmp_path)
    rollout = make_rollout([1, 2], [3, 4], score=0.5, verdict="wrong_value")
    cells = [rollout.prompt_text, rollout.response_text, rollout.scored.answer, "wrong_value", 0.5]
    with wandb_server(monkeypatch) as server:
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
    with wandb_server(monkeypatch, takes_tables=False) as server:
        with wandb_tracking(config, run.path):
            do_tested_step(run, 1, [make_rollout([1], [2])])
            do_steps(run, 2, 3)
        assert scores_by_step(server) == expected(1, 3)
        assert sampled(server) == {}
    (said,) = caplog.messages
    assert said.startswith("wandb: no samples of step 1: ")


@pytest.mark.slow
@pytest.mark.chaos
def test_no_process_outlives_a_trainer_that_is_killed(tmp_path, monkeypatch, survived):
    _, run = a_run(tmp_path)
    code = """
import sys, time
from pathlib import Path
from rl_core.config.operations import TrainerConfig
from rl_core.config.run import RunConfig
from rl_core.tracking.wandb_tracker import wandb_tracking

trainer = TrainerConfig(logger=("wandb",), wandb_mode="online")
with wandb_tracking(RunConfig(trainer=trainer), Path(sys.argv[1])):
    time.sleep(600)
"""
    with wandb_server(monkeypatch) as server:
        with begun(code, run.path):
            wait_for(lambda: any(process.name() == SERVICE for process in beside_us()))
            do_steps(run, 1, 5)
            left = beside_us()
        wait_for(lambda: not any(process.is_running() for process in left))
        assert scores_by_step(server) == expected(1, 5)
    survived("SIGKILL", "trainer beside wandb")


@pytest.mark.slow
def test_an_upload_says_in_one_line_why_it_failed(tmp_path, monkeypatch):
    _, run = a_run(tmp_path)
    assert upload_run(run.path) == ("already", 0, "no step was done")
    do_steps(run, 1, 2)
    with wandb_server(monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))  # no .netrc
        monkeypatch.delenv("WANDB_API_KEY")
        assert "API key" in upload_run(run.path)[2]


def test_offline_or_without_wandb_in_the_settings_nothing_starts(tmp_path):
    elsewhere = RunConfig(trainer=TrainerConfig(logger=("console",)))
    offline = RunConfig(trainer=TrainerConfig(logger=("wandb",), wandb_mode="offline"))
    for config in (elsewhere, offline):
        with wandb_tracking(config, tmp_path):
            assert beside_us() == []
        assert list(tmp_path.iterdir()) == []
    code = "import sys, rl_core.tracking.wandb_tracker; sys.exit('wandb' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_process_that_cannot_be_started_costs_a_warning(tmp_path, caplog):
    config, run = a_run(tmp_path)
    (run.path / "wandb").write_text("in the way")
    with wandb_tracking(config, run.path):
        do_steps(run, 1, 2)
    (said,) = caplog.messages
    assert "wandb lacks steps of this run (its process could not be started" in said
    assert "`countdown-train sync run_id=my-run` uploads them" in said


def test_rows_come_once_and_whole_as_the_file_grows(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    rows = NewRows(log.path)
    assert list(rows.new()) == []
    log.append(1, {"a": 0.5})
    log.append(2, {"a": 1.5})
    assert [(row["step"], row["a"]) for row in rows.new()] == [(1, 0.5), (2, 1.5)]
    assert list(rows.new()) == []
    with log.path.open("a") as file:
        file.write('{"step": 3, "a"')
        file.flush()
        assert list(rows.new()) == []
        file.write(': 2.5}\n{"step": 4, "a"\n{"step": 5, "a": 4.5}\n')
    assert [row["step"] for row in rows.new()] == [3, 5]  # a crash cut short what was to be 4


def test_the_middle_of_a_long_text_is_left_out_of_a_table(tmp_path, make_rollout):
    log = RolloutLog(tmp_path / "rollouts", "r")
    long, short = "a" * 1_000 + "b" * 10 + "c" * 1_000, "d" * 2_000
    rollouts = [replace(make_rollout([1], [2]), response_text=text) for text in (long, short)]
    log.write(1, 0, rollouts, {})
    shown = [row[COLUMNS.index("response")] for row in sample_table(log.folder, 1)]
    assert shown == ["a" * 1_000 + " [...] " + "c" * 1_000, short]
