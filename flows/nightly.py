"""The night: train from the champion or afresh, compare, promote, report, and tell who listens.

The stages are those of `countdown_train.py`; here is what a night has beside them.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.logging import get_run_logger
from prefect.logging.loggers import flow_run_logger

from flows.countdown_train import name_of, own_name, run_pipeline, settings_of
from flows.errors import one_line
from flows.runs.run_record import choose_run
from flows.settings.compose import PresetName
from rl_core.checkpoints.champion import PromotedContender
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import reading
from rl_core.system.log_file import redact
from tasks.prefect_ui.notify import Listeners, notify, notify_task, warn_of_mistakes
from tasks.start import champion_of, start_task


def tell_of_crash(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Has the worker tell of a night whose process died, which cannot tell itself."""
    call = inspect.signature(nightly.fn).bind(**flow_run.parameters)
    call.apply_defaults()
    asked = call.arguments
    config = settings_of(asked["preset"], asked["overrides"])
    if config.run_id is None:
        config = config.model_copy(update={"run_id": name_of(flow_run)})
    run = _run(config)
    if run is not None and run.read().status == "failed":
        return  # it told of that itself, and its process ended with an exit code as it should
    message = _message("failed", config, state.message or "its process is gone")
    notify(_listeners(asked["webhook"], asked["command"]), message, flow_run_logger(flow_run))


@flow(name="nightly", on_crashed=[tell_of_crash])
def nightly(
    preset: PresetName = "quickstart",
    overrides: tuple[str, ...] = (),
    start_from: Literal["champion", "afresh"] = "champion",
    webhook: str | None = None,
    command: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Trains a night long, and promotes what came out of it if it is better than the champion.

    Args:
        preset: Named settings to start from.
        overrides: KEY=VALUE each, as on the command line; a preset=NAME or preset=FILE.yaml among
            them stands before `preset`.
        start_from: The champion of the same test problems, which is then also the reference of the
            KL penalty, or the base model of the settings (afresh), as where no champion is yet.
        webhook: Told of a failure and of a promotion by a JSON object (POST). Name an environment
            variable of the worker or a Prefect Secret block that holds the URL: a URL itself is
            seen here by all who see the run.
        command: A program and its arguments, told the same on its standard input. No shell.

    Returns:
        The run's record, as in `run.json`.
    """
    listeners = _listeners(webhook, command)
    warn_of_mistakes(listeners, get_run_logger())
    config = None
    try:
        config = settings_of(preset, overrides)
        with _started(config, start_from) as config:
            config = choose_run(config, own_name())
            run = run_pipeline(config)
    except Exception as error:
        notify_task(listeners, _message("failed", config, redact(one_line(error))))
        raise
    champion = _champion(config, run)
    if champion is not None and champion.run_id == run.run_id:
        notify_task(listeners, _message("promoted", config, champion.reason))
    return run.read().model_dump(mode="json")


@contextmanager
def _started(config: RunConfig, start_from: str) -> Iterator[RunConfig]:
    """Yields the settings with the model to start from, which stays on the disk meanwhile."""
    folder = start_task(config) if start_from == "champion" else None
    if folder is None:
        yield config
        return
    model = config.model.model_copy(update={"path": str(folder)})
    with reading(folder):  # it may lose its place, and with it what keeps it from being pruned
        yield config.model_copy(update={"model": model})


def _message(event: str, config: RunConfig | None, reason: str) -> dict[str, Any]:
    """Returns what is told: `event`, `reason` and, where there is a run, its numbers and files.

    `text` says it in a sentence, under the name that chats (Slack, Mattermost) show.
    """
    run = _run(config)
    message: dict[str, Any] = {"event": event, "run_id": None, "reason": redact(reason)}
    if run is not None and config is not None:
        record, champion = run.read(), _champion(config, run)
        report = run.path / "report.html"
        message |= {
            "run_id": run.run_id,
            "steps": record.steps,
            "accuracy_before": record.accuracy_before,
            "accuracy_after": record.accuracy_after,
            "champion": champion.name if champion else None,
            "accuracy_champion": champion.accuracy if champion else None,
            "next_step": record.next_step,
            "report": str(report.absolute()) if report.exists() else None,
        }
    return {**message, "text": f"{message['run_id'] or 'the night'} {event}: {message['reason']}"}


def _run(config: RunConfig | None) -> RunFolder | None:
    """Returns the run of these settings, if it came to be."""
    if config is None or config.run_id is None:
        return None
    run = RunFolder.under(config.storage.root, config.run_id)
    return run if run.is_there() else None


def _champion(config: RunConfig, run: RunFolder) -> PromotedContender | None:
    """Returns the champion of a run's problems; None, too, where nothing tells it."""
    data = run.read().data
    try:
        champion = champion_of(config, Path(data)) if data is not None else None
    except (OSError, ValueError):
        return None
    return champion.current if champion else None


def _listeners(webhook: str | None, command: Sequence[str]) -> Listeners:
    return Listeners(webhook or None, tuple(command))
