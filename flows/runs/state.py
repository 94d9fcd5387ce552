"""The state that Prefect's server has of a flow run, while that runs: buttons pressed, and errors.

Prefect looks at it only between two tasks, and training is one task of hours. After a restart a
server takes runs for lost whose heartbeats it missed, and a worker whose server was away for
minutes no longer looks for Cancel. So a thread of the run looks every few seconds.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final
from uuid import UUID

from httpx import HTTPError
from prefect import flow_engine, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, Pause, PrefectException, TerminationSignal
from prefect.states import Cancelled, Crashed, Running

from rl_core.runs.run_folder import RunFolder
from tasks.prefect_ui.artifacts import in_background

_MAINTAIN: Final = "maintain_concurrency_lease"
_LOOK_S: Final = 5.0
_WORKERS_TURN_S: Final = 45.0  # of the worker, for Cancel: it looks every 10 s, kills after 30 more
_AWAY_S: Final = 600.0
_RUNS_ON: Final = "only a run of a deployment can be suspended, and resumed: this one runs on"
_ANSWER_S: Final = 3.0  # that an ending process waits for whether it was cancelled
_cancelled: Final = threading.Event()  # set once the server has this flow run as cancelled
_logger = logging.getLogger(__name__)


def own_flow_run() -> FlowRun | None:
    """Returns the flow run that this code is part of, if it is."""
    context = FlowRunContext.get()
    return None if context is None else context.flow_run


def outlive_lost_leases() -> None:
    """Makes flow runs of this process warn of a lost lease and continue; no setting does.

    A run of a deployment with a concurrency limit renews the lease of its slot. If that fails (the
    server was away, or has forgotten its leases in a restart) Prefect raises CancelledError in the
    flow. Without it the next run may start while this one runs: a worker's `--limit 1` counts both.
    """
    maintain = getattr(flow_engine, _MAINTAIN)
    lasts = {"raise_on_lease_renewal_failure": False}
    setattr(flow_engine, _MAINTAIN, lambda *args, **kwargs: maintain(*args, **kwargs | lasts))


@contextmanager
def heeding_the_server() -> Iterator[None]:
    """Makes Suspend and Cancel stop the block as SIGTERM does, and keeps a live run Running.

    In the end it waits up to ten minutes for a server that is away, to report how the run ended.
    Raises Pause if the run was suspended (its state stays what it is), and Abort if it was
    cancelled and no worker was there to do it.
    """
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        yield
        return
    watch = _Watch(context)
    _cancelled.clear()
    try:
        with watch:
            yield
    except TerminationSignal:
        watch.raise_what_was_asked()
        raise
    _wait_for_server()


def take_over(run: RunFolder) -> None:
    """Notes this flow run as the one that works on a run, and closes the flow run before it.

    Not every server has deployments/automations.yaml, which closes those without a heartbeat.
    """
    if (flow_run := own_flow_run()) is None:
        return
    before = run.read().flow_run_id
    run.update(flow_run_id=str(flow_run.id))
    if before is None or before == str(flow_run.id):
        return
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(before)).state
            if state is not None and state.type in (StateType.RUNNING, StateType.CANCELLING):
                why = f"its process was gone; {flow_run.name} continued with run {run.run_id}"
                client.set_flow_run_state(UUID(before), Crashed(message=why), force=True)
    except (HTTPError, PrefectException) as error:  # of another server, or deleted
        _logger.debug("the flow run before was not closed: %s", error)


def is_cancelled() -> bool:
    """Returns whether Cancel in the UI, not another SIGTERM, is why this process ends."""
    flow_run = own_flow_run()
    if flow_run is not None and not _cancelled.is_set():  # no answer counts as no
        in_background(partial(_look_for_cancel, flow_run.id)).join(_ANSWER_S)
    return _cancelled.is_set()


def _look_for_cancel(flow_run: UUID) -> None:
    with suppress(HTTPError, PrefectException), get_client(sync_client=True) as client:
        state = client.read_flow_run(flow_run).state
        if state is not None and state.type in (StateType.CANCELLING, StateType.CANCELLED):
            _cancelled.set()


def is_suspended() -> bool:
    """Returns whether this flow run was suspended, and is on its way out."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run_suspension_request.is_requested()


class _Watch:
    """A thread that looks at the state of this process's flow run every few seconds."""

    def __init__(self, context: FlowRunContext) -> None:
        assert context.flow_run is not None
        self._id = context.flow_run.id
        self._can_resume = context.flow_run.deployment_id is not None
        self._suspension = context.flow_run_suspension_request
        self._closing = threading.Event()
        self._acting = threading.Lock()
        self._cancelling_since: float | None = None
        self._cancels = False

    def __enter__(self) -> None:
        in_background(self._keep_looking)

    def __exit__(self, *error: object) -> None:
        with self._acting:  # what it has begun, and nothing after that
            self._closing.set()

    def raise_what_was_asked(self) -> None:
        """Raises what Prefect ends a run by, if it was this watch that stopped it."""
        suspended = self._suspension.get_state()
        if suspended is not None:
            raise Pause(state=suspended) from None
        if self._cancels:
            cancelled: State = Cancelled(message="Cancelled by its own process: no worker did it.")
            try:
                with get_client(sync_client=True) as client:
                    client.set_flow_run_state(self._id, cancelled, force=True)
            except (HTTPError, PrefectException) as error:
                _logger.warning("the Prefect server did not get %s: %s", cancelled.name, error)
            raise Abort("cancelled") from None

    def _keep_looking(self) -> None:
        while not self._closing.wait(_LOOK_S):
            # While the server is away it sees nothing; the next look finds what there is.
            with suppress(HTTPError, PrefectException), get_client(sync_client=True) as client:
                state = client.read_flow_run(self._id).state
                with self._acting:
                    if state is not None and not self._closing.is_set():
                        self._heed(state, client)

    def _heed(self, state: State, client: SyncPrefectClient) -> None:
        since = self._cancelling_since
        self._cancelling_since = None
        if state.type is StateType.PAUSED and self._can_resume:
            self._suspension.mark_requested(state)  # Prefect looks there between two tasks
            self._stop("suspended")
        elif state.type in (StateType.CRASHED, StateType.PAUSED):
            why = state.message if state.type is StateType.CRASHED else _RUNS_ON
            _logger.warning(
                "the server's state of this run was %s (%s); it is running, so it was set to "
                "Running",
                state.name,
                why,
            )
            client.set_flow_run_state(self._id, Running(message=why), force=True)
        elif state.type is StateType.CANCELLING:
            self._cancelling_since = since or time.monotonic()
            if time.monotonic() - self._cancelling_since > _WORKERS_TURN_S:
                self._cancels = True
                _cancelled.set()
                self._stop("cancelled, and no worker did it")

    def _stop(self, why: str) -> None:
        """Makes the main thread leave, as a worker would, and stops looking."""
        self._closing.set()
        _logger.warning("%s: finishing the step, saving, leaving", why)
        os.kill(os.getpid(), signal.SIGTERM)


def _wait_for_server() -> None:
    deadline = time.monotonic() + _AWAY_S
    message: str | None = "all is done, but the Prefect server is away: waiting for it"
    with get_client(sync_client=True) as client:
        while client.api_healthcheck() is not None and time.monotonic() < deadline:
            if message:
                _logger.warning(message)
            message = None
            time.sleep(_LOOK_S)
