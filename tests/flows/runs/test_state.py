"""States that the server has of a running flow run, and what that run makes of them and logs."""

import logging
from collections.abc import Iterator
from uuid import UUID

import pytest
from prefect import flow, get_client, task
from prefect.client.schemas.objects import State, StateDetails, StateType
from prefect.exceptions import Abort, Pause
from prefect.flow_engine import run_flow
from prefect.runtime import flow_run
from prefect.states import Cancelling, Crashed, Running, Suspended

from flows.countdown_train import countdown_train
from flows.evaluate import evaluate
from flows.prune import prune
from flows.runs import state as flow_run_state
from flows.runs.run_record import recorded
from flows.runs.state import heeding_the_server, is_suspended, take_over
from rl_core.runs.run_folder import RunFolder
from rl_core.system.log_file import PREFECTS_RUN_LOGGERS
from tests.rl_core.runs.test_run_folder import config_in
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_harness")]


def state_of(run_id: UUID) -> State:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run_id).state
    assert state is not None
    return state


def put_in(state: State, *, force: bool = True) -> UUID:
    """Has the server take this flow run for something else, by default against its rules."""
    own = UUID(flow_run.get_id())
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(own, state, force=force)
    assert state_of(own).type is state.type
    return own


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_run_state, "_LOOK_S", 0.2)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))  # with the traceback, if there is one


@pytest.fixture
def said() -> Iterator[list[str]]:
    """What flow and task runs log."""
    handler = _Lines()
    loggers = [logging.getLogger(name) for name in PREFECTS_RUN_LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler.lines
    for logger in loggers:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("asked", "override", "line"),
    [
        (countdown_train, "sed=1", "unknown setting 'sed'; did you mean seed?"),
        (countdown_train, "model.path=/nothing/here", "/nothing/here: there is no such folder"),
        (evaluate, "seed=1", "yet: start one with `countdown-train run`"),
        (prune, "run_id=none", "no run 'none' in "),
    ],
)
def test_a_mistake_in_the_settings_is_one_line_without_a_traceback(
    asked, override, line, said, tmp_path
):
    overrides = (override, f"storage.root={tmp_path}")
    for _ in range(2):  # a Retry tells it again
        said.clear()
        state = asked(overrides=overrides, return_state=True)
        assert state.is_failed()
        (told,) = [text for text in said if line in text]
        assert "\n" not in told
        assert not any("Traceback" in text for text in said)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (Crashed(message="No heartbeat for 90 s."), "No heartbeat for 90 s."),
        # A page of Prefect forces this, and nothing could ever resume it.
        (
            Suspended(state_details=StateDetails(pause_reschedule=True)),
            "only a run of a deployment can be suspended",
        ),
    ],
)
def test_a_run_that_goes_on_is_running_in_words(state, said):
    @flow
    def works() -> None:
        with heeding_the_server():
            own = put_in(state)
            wait_for(lambda: state_of(own).is_running())
            assert said in (state_of(own).message or "")

    assert works(return_state=True).is_completed()


def test_suspend_leaves_in_the_middle_of_a_task_and_resume_does_that_again():
    started: list[bool] = []

    @task
    def trains() -> None:
        started.append(is_suspended())
        if len(started) == 1:
            details = StateDetails(pause_reschedule=True)
            put_in(Suspended(state_details=details), force=False)
            wait_for(lambda: False)

    @flow
    def works() -> None:
        with heeding_the_server():
            try:
                trains()
            finally:
                started.append(is_suspended())

    with get_client(sync_client=True) as client:
        deployment = client.create_deployment(flow_id=client.create_flow(works), name="works")
        run = client.create_flow_run_from_deployment(deployment)
        with pytest.raises(Pause):
            run_flow(works, flow_run=run)
        assert state_of(run.id).name == "Suspended"
        client.resume_flow_run(run.id)
        assert state_of(run.id).is_scheduled()
        run_flow(works, flow_run=client.read_flow_run(run.id))
    assert state_of(run.id).is_completed()
    assert started == [False, True, False, False]


def test_cancel_is_heeded_without_a_worker_and_told_as_no_crash(tmp_path, monkeypatch, said):
    """A worker gives up listening when its server was away for half a minute."""
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
    assert "no worker" in (state_of(seen[0]).message or "")
    record = run.read()
    again = f"Retry in the UI, or run_id={run.run_id}, starts it again"
    assert (record.status, record.next_step) == ("interrupted", again)
    assert record.reason == f"cancelled; before a step was saved; {again}"
    assert not any("Crash detected" in text for text in said)


def test_what_ends_while_the_server_is_away_waits_to_tell_it(monkeypatch, caplog):
    away = iter([ConnectionError(), ConnectionError()])
    monkeypatch.setattr(
        "prefect.client.orchestration.SyncPrefectClient.api_healthcheck",
        lambda client: next(away, None),
    )

    @flow
    def works() -> None:
        with heeding_the_server():
            pass

    works()
    assert next(away, None) is None
    assert caplog.text.count("waiting to tell it") == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_a_run_that_goes_on_closes_the_flow_run_that_died(tmp_path, is_there):
    run = RunFolder.create(config_in(tmp_path))

    @flow
    def dies() -> UUID:
        take_over(run)
        return UUID(flow_run.get_id())

    @flow
    def goes_on() -> UUID:
        take_over(run)
        take_over(run)  # a retry of the same flow run
        return UUID(flow_run.get_id())

    dead = dies()
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(dead, Running(), force=True)  # as SIGKILL leaves it
        if not is_there:
            client.delete_flow_run(dead)
    lives = goes_on()
    assert run.read().flow_run_id == str(lives)
    assert state_of(lives).type is StateType.COMPLETED
    if is_there:
        closed = state_of(dead)
        assert closed.type is StateType.CRASHED
        assert f"continued with run {run.run_id}" in str(closed.message)
