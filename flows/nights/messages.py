"""A night's messages: one object for programs, whose `text` says all of it for people."""

import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from prefect.client.schemas.objects import FlowRun
from prefect.utilities.urls import url_for

from flows.nights.settings import Event
from flows.runs.run_record import last_saved
from flows.runs.summary import accuracy_in_words
from rl_core.checkpoints.champion import PromotedContender
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.system.child_process import how_it_ended
from rl_core.system.redaction import redact
from tasks.start import Start, champion_of

_EXIT_CODE: Final = re.compile(r"non-zero status code (-?\d+)")


@dataclass(frozen=True)
class Night:
    """What is known of a night when a message about it is sent."""

    flow_run: FlowRun | None = None
    config: RunConfig | None = None
    """With `run_id`, once there is a run."""
    start: Start | None = None

    @property
    def due(self) -> str | None:
        """When it was to start, ISO 8601."""
        due = self.flow_run and self.flow_run.expected_start_time
        return due.isoformat(timespec="seconds") if due else None

    @property
    def run(self) -> RunFolder | None:
        """The run of these settings, if it came to be."""
        if self.config is None or self.config.run_id is None:
            return None
        run = RunFolder.under(self.config.storage.root, self.config.run_id)
        return run if run.is_there() else None

    def champion(self) -> PromotedContender | None:
        """Returns the champion of the run's problems; None, too, if it cannot be read."""
        data = self.run.read().data if self.run else None
        if self.config is None or data is None:
            return None
        try:
            champion = champion_of(self.config, Path(data))
        except (OSError, ValueError):
            return None
        return champion.current if champion else None


def message(event: Event | str, night: Night, reason: str) -> dict[str, Any]:
    """Returns the message: `event`, `reason` and, if there is a run, its numbers and files."""
    reason = redact(reason)
    told: dict[str, Any] = {
        "event": event,
        "run_id": None,
        "reason": reason,
        "due": night.due,
        "host": platform.node(),
        "flow_run": night.flow_run and url_for("flow-run", obj_id=night.flow_run.id),
    }
    lines = [f"the night{f' of {night.due}' if night.due else ''} {event}: {reason}"]
    if night.run is not None:
        told |= _facts(night, night.run)
        lines = [f"{night.run.run_id} {event}: {reason}", *_lines(told, night)]
    if night.start is not None and not night.start.is_as_asked:
        lines.append(f"warning: it started {night.start.sentence}")
    if told["flow_run"]:
        lines.append(f"flow run: {told['flow_run']}")
    if told.get("report"):
        lines.append(f"report: {told['report']} on {told['host']}")
    return {**told, "text": redact("\n".join(lines))}


def killed(night: Night, said: str | None) -> str:
    """Returns why a night's process is gone, which could not report it, and notes it in `run.json`.

    `said` is the message of the state that Prefect's worker gave the flow run.
    """
    found = _EXIT_CODE.search(said or "")
    reason = f"its process ended: {how_it_ended(int(found[1]))}" if found else said or "it died"
    if found and int(found[1]) == -9:
        reason = "its process was killed by SIGKILL (often by the kernel, because memory ran out)"
    if night.run is not None and night.run.read().status != "finished":
        step = last_saved(night.run)
        following = f"Retry goes on from step {step}" if step else "Retry starts it again"
        night.run.update(status="interrupted", reason=reason, next_step=following)
    return reason


def _facts(night: Night, run: RunFolder) -> dict[str, Any]:
    record, champion = run.read(), night.champion()
    report = run.path / "report.html"
    return {
        "run_id": run.run_id,
        "steps": record.steps,
        "minutes": round(sum(record.timings_s.values()) / 60, 1),
        "started_from": record.started_from,
        "accuracy_before": record.accuracy_before,
        "accuracy_after": record.accuracy_after,
        "champion": champion.name if champion else None,
        "accuracy_champion": champion.accuracy if champion else None,
        "next_step": record.next_step,
        "report": str(report.absolute()) if report.exists() else None,
    }


def _lines(facts: dict[str, Any], night: Night) -> list[str]:
    lines = []
    if facts["accuracy_before"] is not None or facts["accuracy_after"] is not None:
        before, after = (
            accuracy_in_words(facts[f"accuracy_{when}"]) for when in ("before", "after")
        )
        lines.append(f"accuracy {before} -> {after}")
    start = f", started from {facts['started_from']}" if night.start and night.start.folder else ""
    lines.append(f"{facts['steps']} steps in {facts['minutes']:g} min on {facts['host']}{start}")
    if facts["next_step"]:
        lines.append(f"what to do next: {facts['next_step']}")
    return lines
