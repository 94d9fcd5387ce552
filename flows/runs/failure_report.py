"""The last words of a run that failed: what was measured last, where memory went, what to do next.

In `run.json`, and as the artifact `report` of its flow run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from prefect.context import FlowRunContext
from prefect.exceptions import Pause, TerminationSignal

from flows.errors import BadInputError
from flows.runs.lookup import settings_of_run
from flows.runs.state import is_cancelled
from rl_core.checkpoints.store import list_checkpoints
from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory
from rl_core.resources.oom_recovery import beyond_recovery
from rl_core.runs.run_folder import RunFolder, RunRecord
from rl_core.system.disk_reserve import RESERVE_BYTES
from rl_core.system.log_file import redact
from rl_core.system.words import GIB, markdown_table
from tasks.prefect_ui.artifacts import create_markdown_artifact
from tasks.prefect_ui.attempts import settings_that_help
from tasks.prefect_ui.progress import HEADLINES
from tasks.report_page.failure_causes import cause_of
from tasks.report_page.faults import later_attempts

_TIMELINES: Final = {"memory/peak_gib/": "", "memory/host_gib/": "host "}
_STEPS_KEPT: Final = 20
_STEPS_IN_TABLE: Final = 8
_logger = logging.getLogger(__name__)


def last_words(error: BaseException, run: RunFolder) -> dict[str, Any]:
    """Returns the fields of `run.json` that a failure fills: numbers of the last steps, advice."""
    rows = run.metrics.read()
    return {
        "next_step": next_step(error, run),
        "last_metrics": last_metrics(rows),
        "memory_gib": memory_timeline(rows),
    }


def next_step(error: BaseException, run: RunFolder) -> str:
    """Returns in one sentence what to do about an error that ended a run."""
    step = last_saved(run)
    outcome = f"goes on from step {step}" if step else "starts it again"
    again = f"the same command with run_id={run.run_id}"
    if isinstance(error, KeyboardInterrupt | TerminationSignal | Pause):
        same = "Retry in the UI" if is_cancelled() else "the same command"
        return f"{same}, or run_id={run.run_id}, {outcome}"
    if isinstance(error, OutOfMemory):
        return _make_room(error, run, again, outcome)
    if (cause := cause_of(error)) is None:
        return f"the end of {run.path / 'log.txt'} has the error in full; {again} {outcome}"
    facts = {"missing_gib": _missing_gib(run)} if "{missing_gib" in cause.here else {}
    remedy = cause.here.format(error=error, run=run, workers=run.path / "workers", **facts)
    return f"{remedy}; {again} {outcome}"


def last_saved(run: RunFolder) -> int:
    """Returns the last step that a run can go on from; 0 before the first."""
    return max((c.step for c in list_checkpoints(run.path)), default=0)


def last_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the last step, and the last value of each metric by which people judge a run."""
    found = {
        name: float(row[name]) for name in HEADLINES for row in rows if row.get(name) is not None
    }
    return {"step": float(rows[-1]["step"])} | found if rows else {}


def memory_timeline(rows: Sequence[Mapping[str, Any]]) -> dict[str, tuple[float | None, ...]]:
    """Returns `step`, and by phase (or `host PROCESS`) GiB at each of these steps, at most 20."""
    last = rows[-_STEPS_KEPT:]
    names = {
        metric: short + metric.removeprefix(prefix)
        for row in last
        for metric in row
        for prefix, short in _TIMELINES.items()
        if metric.startswith(prefix)
    }
    if not names:
        return {}
    measured = [row for row in last if row.keys() & names.keys()]
    timeline: dict[str, tuple[float | None, ...]] = {
        "step": tuple(float(row["step"]) for row in measured)
    }
    for metric, name in names.items():
        values = (row.get(metric) for row in measured)
        timeline[name] = tuple(None if value is None else round(value, 3) for value in values)
    return timeline


def show_last_words(run: RunFolder) -> None:
    """Leaves what `run.json` says about a failure as an artifact, if this is a flow run."""
    if FlowRunContext.get() is None:
        return
    try:
        create_markdown_artifact(
            redact(as_markdown(run.read())),
            key="report",
            description="Why the run failed, what it measured last, and what to do next.",
            is_first=True,
        )
    except ValueError as error:  # the record itself cannot be read
        _logger.warning("the last words could not be shown: %s", error)


def as_markdown(record: RunRecord) -> str:
    """Returns the last words of a run as a page."""
    lines = [
        f"# {record.run_id}: {record.status} after {record.steps} steps",
        "",
        f"**Why:** {_plain(record.reason)}",
        "",
        f"**What to do next:** {record.next_step}",
    ]
    lines += [f"\n{_plain(str(fault))}" for fault in later_attempts(record)]
    if record.last_metrics:
        rows = [[name, f"{value:.4g}"] for name, value in record.last_metrics.items()]
        lines += ["", markdown_table(["last measured", ""], rows, numbers=[1])]
    if record.host_peak_gib:
        peaks = (f"{name} {gib:.2f}" for name, gib in record.host_peak_gib.items())
        lines += ["", f"The most of the machine's memory, in GiB: {', '.join(peaks)}"]
    if record.memory_gib:
        steps = record.memory_gib["step"][-_STEPS_IN_TABLE:]
        rows = [
            [name, *("" if v is None else f"{v:.2f}" for v in values[-_STEPS_IN_TABLE:])]
            for name, values in record.memory_gib.items()
            if name != "step"
        ]
        heads = ["GiB at step", *(f"{step:g}" for step in steps)]
        lines += ["", markdown_table(heads, rows, numbers=range(1, len(heads)))]
    return "\n".join(lines) + "\n"


def _make_room(error: OutOfMemory, run: RunFolder, again: str, outcome: str) -> str:
    config = _settings(run)
    context = FlowRunContext.get()
    flow_run = context.flow_run if context is not None else None
    if flow_run is not None and flow_run.deployment_id is not None:
        again = f"Retry would fail again: a Custom run with the overrides run_id={run.run_id}"
    helpful = settings_that_help(config, run, error) if config else []
    if not helpful:
        others = [*beyond_recovery(config or RunConfig(), error.phase), "more memory"]
        return f"take {' or '.join(others)}; {again} {outcome}"
    more = f" ({' or '.join(helpful[1:])} would help as well)" if helpful[1:] else ""
    return f"{again} {helpful[0]}{more} {outcome}"


def _settings(run: RunFolder) -> RunConfig | None:
    try:
        return settings_of_run(run)
    except BadInputError:
        return None


def _missing_gib(run: RunFolder) -> float:
    """Returns what the largest checkpoint wants beside what is free, in GiB, at least 0.1."""
    config = _settings(run) or RunConfig()
    checkpoint = max((c.size_bytes for c in list_checkpoints(run.path)), default=0)
    wanted = config.storage.min_free_gib + (checkpoint + RESERVE_BYTES) / GIB
    return max(wanted - run.free_gib(), 0.1)


def _plain(text: str | None) -> str:
    """Returns an error's text so that markdown shows it as it is."""
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text or "(nothing said)")
