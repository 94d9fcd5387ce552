"""The night: train from the champion or afresh, compare, promote, report, and tell who listens.

The stages are those of `countdown_train.py`; here is what a night has beside them.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.logging import get_run_logger
from prefect.logging.loggers import flow_run_logger
from prefect.utilities.callables import get_call_parameters

from flows.countdown_train import own_name, run_pipeline, settings_of
from flows.errors import one_line
from flows.nights.messages import Night, killed, message
from flows.nights.settings import EVENTS, Event
from flows.runs.run_record import choose_run
from flows.runs.state import own_flow_run
from flows.settings.compose import PresetName
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import reading
from rl_core.system.redaction import redact, redacting_errors
from tasks.prefect_ui.flow_run import logs_in_ui
from tasks.prefect_ui.notify import Listeners, notify, notify_task, warn_of_mistakes
from tasks.preflight import preflight_validation, refuse_fatal
from tasks.start import Start, StartFrom, start_task


@redacting_errors()
def tell_of_crash(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Sends the message of a night whose process died; Prefect calls it in the worker."""
    asked = get_call_parameters(nightly.fn, (), flow_run.parameters)
    config = settings_of(asked["preset"], asked["overrides"])
    night = Night(flow_run, config)
    for run in RunFolder.all_under(config.storage.root):  # it may go on with that of a night before
        with suppress(ValueError):  # what lies there is no run
            if night.due is not None and run.read().night == night.due:
                night = Night(flow_run, config.model_copy(update={"run_id": run.run_id}))
    if night.run is not None and night.run.read().status == "failed":
        return  # it told of that itself, and its process ended with an exit code as it should
    reason = killed(night, state.message)
    if "failed" in asked["events"]:
        listeners = Listeners(asked["webhook"] or None, tuple(asked["command"]))
        notify(listeners, message("failed", night, reason), flow_run_logger(flow_run))


@flow(name="nightly", on_crashed=[tell_of_crash])
def nightly(
    preset: PresetName = "quickstart",
    overrides: tuple[str, ...] = (),
    start_from: StartFrom = "champion",
    webhook: str | None = None,
    command: tuple[str, ...] = (),
    events: tuple[Event, ...] = EVENTS,
) -> dict[str, Any]:
    """Trains a night long, and promotes what came out of it if it is better than the champion.

    Args:
        preset: Named settings to start from.
        overrides: KEY=VALUE each, as on the command line; a preset=NAME or preset=FILE.yaml among
            them stands before `preset`. The seed is that of the first night; each later night adds
            one.
        start_from: The champion of the same test problems, which is then also the reference of the
            KL penalty, or the base model of the settings (afresh, also if no champion is there).
        webhook: Receives a JSON object (POST) for each of the events. Name an environment
            variable of the worker or a Prefect Secret block that holds the URL: all who see the
            run see a URL that is written here.
        command: A program and its arguments, without a shell; it reads the same object from its
            standard input.
        events: What a message is sent for. failed: the night ended with an error or was killed.
            promoted: its model is the new champion. finished: it is not.

    Returns:
        The run's record, as in `run.json`.
    """
    listeners = Listeners(webhook or None, tuple(command))
    warn_of_mistakes(listeners, get_run_logger())
    night = Night(own_flow_run())

    def tell(event: Event, of: Night, reason: str) -> None:
        if event in events:
            notify_task(listeners, message(event, of, reason))

    with logs_in_ui():
        try:
            config = settings_of(preset, overrides)
            night = Night(night.flow_run, config)
            with _started(config, start_from) as (config, start):
                night = Night(night.flow_run, config, start)
                run = run_pipeline(config, night=night.due, started_from=start.sentence)
        except Exception as error:
            tell("failed", night, redact(one_line(error)))
            raise
        champion = night.champion()
        if champion is not None and champion.run_id == run.run_id:
            tell("promoted", night, champion.reason)
        else:
            tell("finished", night, run.read().champion or "not promoted")
    return run.read().model_dump(mode="json")


@contextmanager
def _started(config: RunConfig, start_from: StartFrom) -> Iterator[tuple[RunConfig, Start]]:
    """Yields the settings of the night's run; the model that it starts from stays on the disk."""
    if config.model.path is not None:  # which the champion would replace
        refuse_fatal(preflight_validation(config))
    start = start_task(config, start_from)
    changes: dict[str, Any] = {"seed": start.seed}
    if start.folder is not None:
        changes["model"] = config.model.model_copy(update={"path": str(start.folder)})
    with reading(start.folder) if start.folder is not None else nullcontext():
        # It may lose its place, and with it what keeps it from being pruned.
        yield choose_run(config.model_copy(update=changes), own_name()), start
