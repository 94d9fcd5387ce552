from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.exceptions import Abort
from prefect.states import Cancelling

from flows.countdown_train import countdown_train
from flows.runs import state as flow_run_state
from flows.runs.run_record import recorded
from flows.runs.state import heeding_the_server
from rl_core.runs.run_folder import RunFolder
from rl_core.system.log_file import PREFECTS_RUN_LOGGERS
from tests.flows.runs.test_state import put_in, state_of
from tests.rl_core.runs.test_run_folder import config_in
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_harness")]


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))  # with the traceback, if there is one


@pytest.fixture
def said() -> Iterator[list[str]]:
    handler = _Lines()
    loggers = [logging.getLogger(name) for name in PREFECTS_RUN_LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler.lines
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("sed=1", "unknown setting 'sed'; did you mean seed?"),
        ("model.path=/nothing/here", "model.path=/nothing/here: there is no such folder"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line_without_a_traceback(
    override: str, line: str, said: list[str], tmp_path: Path
) -> None:
    overrides = (override, f"storage.root={tmp_path}")
    for _ in range(2):  # a Retry tells it again
        said.clear()
        state = countdown_train(overrides=overrides, return_state=True)
        assert state.is_failed()
        (told,) = [text for text in said if line in text]
        assert "\n" not in told
        assert not any("Traceback" in text for text in said)


def test_a_wanted_cancel_is_told_as_one_and_as_no_crash(
    said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flow_run_state, "_LOOK_S", 0.2)
    monkeypatch.setattr(flow_run_state, "_WORKERS_TURN_S", 1.0)
    run = RunFolder.create(config_in(tmp_path))
    seen: list[UUID] = []

    @task
    def trains() -> None:
        seen.append(put_in(Cancelling()))
        wait_for(lambda: False)

    @flow
    def works() -> None:
        with heeding_the_server(), recorded(run):
            trains()

    with pytest.raises(Abort):
        works()
    assert state_of(seen[0]).is_cancelled()
    record = run.read()
    again = f"Retry in the UI, or run_id={run.run_id}, starts it again"
    assert (record.status, record.next_step) == ("interrupted", again)
    assert record.reason == f"cancelled; before a step was saved; {again}"
    assert not any("Crash detected" in text for text in said)
