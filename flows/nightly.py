"""The night: train from the champion or afresh, compare, promote, report, send a message."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefect import Flow, flow, task
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import Abort
from prefect.logging import get_run_logger
from prefect.logging.loggers import flow_run_logger
from prefect.utilities.callables import get_call_parameters
from prefect.utilities.urls import url_for

from flows.countdown_train import own_name, run_pipeline, settings_of
from flows.errors import BadInputError, one_line
from flows.missed_nights import missed_before, why_not_run
from flows.runs.run_record import choose_run
from flows.runs.state import own_flow_run
from flows.runs.summary import accuracy_in_words, intervals_of
from flows.settings.compose import PresetName
from flows.settings.night import EVENTS, Event, is_sent
from rl_core.checkpoints.champion import PromotedContender
from rl_core.config.operations import protocol_of
from rl_core.config.run import RunConfig
from rl_core.runs.lock import time_of_killed
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.settings_file import read_settings
from rl_core.system.atomic import reading
from rl_core.system.child_process import how_it_ended
from rl_core.system.redaction import redact, redacting_errors
from rl_core.tracking.diagnosis import diagnose
from tasks.messages import Listeners, notify, plain_message, warn_of_mistakes
from tasks.prefect_ui.flow_run import logs_in_ui
from tasks.preflight import preflight_validation, refuse_fatal
from tasks.report_page.page import render_text
from tasks.start import Start, StartFrom, champion_of, start_task

_MOST_DIAGNOSES: Final = 2
_logger = logging.getLogger(__name__)
_EXIT_CODE: Final = re.compile(r"status code:? (-?\d+)")


@redacting_errors()
def tell_of_end(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Sends the message of a night that died or was cancelled; Prefect calls it in the worker."""
    parameters = get_call_parameters(nightly.fn, (), flow_run.parameters)
    try:
        config = settings_of(parameters["preset"], parameters["overrides"])
    except BadInputError:  # it ended with that message
        config = RunConfig()
    night = Night(flow_run, config)
    for run in RunFolder.all_under(config.storage.root):  # it may continue that of a night before
        with suppress(ValueError):  # what is there is no run
            if night.due is not None and run.read().night == night.due:
                night = Night(flow_run, config.model_copy(update={"run_id": run.run_id}))
    record = night.run.read() if night.run is not None else None
    status = record and record.status
    if state.is_crashed() and status == "failed":
        return  # it reported that itself, and its process ended with an exit code as it should
    event: Event = "failed" if state.is_crashed() else "cancelled"
    if event == "cancelled" and status != "running":
        reason = (record and record.reason) or "cancelled before it began to train"
    else:
        reason = killed(night, state.message)
    if is_sent(event, parameters["events"]):
        notify(_listeners(parameters), message(event, night, reason), flow_run_logger(flow_run))


def tell_of_refused(flow_run: FlowRun) -> str:
    """Sends the message of a night that was cancelled before it began; returns its text."""
    parameters = get_call_parameters(nightly.fn, (), flow_run.parameters)
    sent = message("refused", Night(flow_run), why_not_run(flow_run))
    if is_sent("refused", parameters["events"]):
        notify(_listeners(parameters), sent, _logger)
    return str(sent["text"])


def _listeners(parameters: Mapping[str, Any]) -> Listeners:
    return Listeners(parameters["webhook"] or None, tuple(parameters["command"]))


@task(name="notify", task_run_name="notify webhook and command")
@redacting_errors()
def _notify_task(listeners: Listeners, message: Mapping[str, Any]) -> None:
    """Notifies in a flow run."""
    notify(listeners, message, get_run_logger())


@flow(name="nightly", on_crashed=[tell_of_end], on_cancellation=[tell_of_end])
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
        events: What a message is sent for. failed: the night ended with an error or was killed,
            and with it cancelled, and refused before it began (`serve` sends that). promoted: its
            model is the new champion. finished: it is not, and with it worse.

    Returns:
        The run's record, as in `run.json`.
    """
    listeners = Listeners(webhook or None, tuple(command))
    warn_of_mistakes(listeners, get_run_logger())
    night = Night(own_flow_run())

    def tell(event: Event, reason: str) -> None:
        if is_sent(event, events):
            _notify_task(listeners, message(event, night, reason))

    with logs_in_ui():
        try:
            config = settings_of(preset, overrides)
            night = Night(night.flow_run, config)
            with _started(config, start_from) as (config, start):
                night = Night(night.flow_run, config, start)
                run = run_pipeline(config, night=night.due, started_from=start.sentence)
        except Exception as error:
            tell("failed", one_line(error))
            raise
        except Abort:
            tell("cancelled", (night.run and night.run.read().reason) or "cancelled")
            raise
        champion = night.champion()
        if champion is not None and champion.run_id == run.run_id:
            tell("promoted", champion.reason)
        else:
            reason = run.read().champion or "not promoted"
            tell("worse" if reason.startswith("not promoted: worse ") else "finished", reason)
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
        yield choose_run(config.model_copy(update=changes), own_name(), is_night=True), start


@dataclass(frozen=True)
class Night:
    """What is known of a night when a message about it is sent."""

    flow_run: FlowRun | None = None
    config: RunConfig | None = None  # with `run_id`, once there is a run
    start: Start | None = None

    @property
    def due(self) -> str | None:
        """When it was to start, ISO 8601."""
        due = self.flow_run and self.flow_run.expected_start_time
        return due.isoformat(timespec="seconds") if due else None

    @property
    def run(self) -> RunFolder | None:
        """The run of these settings, if there is one."""
        if self.config is None or self.config.run_id is None:
            return None
        run = RunFolder.under(self.config.storage.root, self.config.run_id)
        return run if run.is_there() else None

    def champion(self) -> PromotedContender | None:
        """Returns the champion of the run's problems; None, too, if it cannot be read."""
        data = self.run.read().data if self.run else None
        with suppress(OSError, ValueError):
            if self.config and data and (champion := champion_of(self.config, Path(data))):
                return champion.current
        return None


def message(event: Event | str, night: Night, reason: str) -> dict[str, Any]:
    """Returns the message: `event`, `reason` and, if there is a run, its numbers and files."""
    reason = redact(reason)
    fields: dict[str, Any] = {
        **plain_message(event, reason),
        "due": night.due,
        "flow_run": night.flow_run and url_for("flow-run", obj_id=night.flow_run.id),
        "missed": None if event == "refused" else missed_before(night.flow_run),
    }
    in_words = dict.fromkeys(("before", "after", "protocol"))
    if night.run is not None:
        fields |= _facts(night, night.run)
        known = fields["intervals"]
        in_words = {
            "before": accuracy_in_words(fields["accuracy_before"], known.get("base")),
            "after": accuracy_in_words(fields["accuracy_after"], known.get("trained")),
            "protocol": protocol_of(read_settings(night.run.path)),
        }
        if event == "worse":
            fields["next_step"] = fields["next_step"] or _after_worse(fields)
    text = render_text("message.txt.j2", **fields, **in_words, start=night.start)
    return {**fields, "text": redact(text.rstrip())}


def killed(night: Night, state_message: str | None) -> str:
    """Returns why a night's process is gone, by its state's message, and notes it in `run.json`."""
    exit_code = _EXIT_CODE.search(state_message or "")
    reason = (
        f"its process ended: {how_it_ended(int(exit_code[1]))}"
        if exit_code
        else state_message or "it died"
    )
    if exit_code and int(exit_code[1]) == -9:
        reason = "its process was killed by SIGKILL (often by the kernel, because memory ran out)"
    if night.run is not None and (status := night.run.read().status) != "finished":
        step = night.run.last_saved()
        night.run.update(
            timings_s=time_of_killed(night.run) if status == "running" else {},
            steps=night.run.metrics.last_step(),
            status="interrupted",
            reason=reason,
            next_step=f"Retry continues from step {step}" if step else "Retry starts it again",
        )
    return reason


def _facts(night: Night, run: RunFolder) -> dict[str, Any]:
    record = run.read()
    champion = night.champion()
    report = run.path / "report.html"
    diagnoses = diagnose(run.metrics.read(), settings=read_settings(run.path))
    return {
        "run_id": record.run_id,
        "steps": record.steps,
        "started_from": record.started_from,
        "next_step": record.next_step,
        "accuracy_before": record.accuracy_before,
        "accuracy_after": record.accuracy_after,
        "minutes": round(sum(record.timings_s.values()) / 60, 1),
        "intervals": intervals_of(run),
        "diagnosis": [str(one) for one in diagnoses if not one.is_note][:_MOST_DIAGNOSES],
        "champion": champion.name if champion else None,
        "accuracy_champion": champion.accuracy if champion else None,
        "report": str(report.absolute()) if report.exists() else None,
    }


def _after_worse(facts: Mapping[str, Any]) -> str:
    model = f"the champion {facts['champion']}" if facts["champion"] else "its base model"
    return (
        f"the next night starts from {model}, so nothing is lost; countdown-train evaluate "
        f"{facts['run_id']}/best says whether an earlier step was better, and actor.lr, "
        "trainer.total_steps or algorithm.kl_coef may hold the policy"
    )
