"""Turns a console log in verl's format into a run that SQL, report and diagnosis read.

(main_task pid=3107) step:2 - critic/kl:-0.001 - critic/score/mean:0.036 - ...
"""

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rl_core.runs.run_folder import IMPORTED, RunFolder, RunRecord
from rl_core.system.atomic import write_text_atomically
from tasks.report_page.failures import COLOURS, find_failure

_STEP = re.compile(r"(?:^|\s)step:(?P<step>\d+) - (?P<metrics>.+)$")
_METRIC = re.compile(
    r"^(?P<name>[\w/.@=-]+):(?:np\.\w+\()?"
    r"(?P<value>[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|NaN|inf|Infinity))\)?$"
)
_OURS: Final = {"actor/entropy": "actor/entropy_loss"}  # verl has changed the name since
_TESTS: Final = {
    "val/score": re.compile(r"val/test_score/.+|val-core/.+/(?:reward|score)/mean@\d+"),
    "val/accuracy": re.compile(r"val-core/.+/acc/mean@\d+"),
}
"""The mean over all data sources: verl's names of one of them."""
_OTHERS: Final = {
    "TRL": re.compile(r"\{'loss': [^}]*'(?:reward|rewards/[^']+)': "),
    "OpenRLHF": re.compile(r"Episode \[\d+/\d+\].*policy_loss=|\bpolicy_loss=.*\bact_lr="),
}

Row = dict[str, float]


def read_log(text: str) -> dict[int, Row]:
    """Returns the metrics by step; of a step that was done again, the last.

    `not_finite/NAME` is 1 for a value that is not finite; `val/score` is the tests' mean score.
    """
    rows: dict[int, Row] = {}
    for line in text.splitlines():
        match = _STEP.search(COLOURS.sub("", line))
        if match is not None and (row := dict(_metrics(match["metrics"]))):
            rows[int(match["step"])] = row
    return rows


def other_trainer(text: str) -> str | None:
    """Returns whose log it is if it is TRL's or OpenRLHF's, which are not read."""
    return next((name for name, pattern in _OTHERS.items() if pattern.search(text)), None)


def _metrics(text: str) -> Iterator[tuple[str, float]]:
    finite: dict[str, float] = {}
    for match in filter(None, (_METRIC.match(item.strip()) for item in text.split(" - "))):
        name, value = _OURS.get(match["name"], match["name"]), float(match["value"])
        if math.isfinite(value):
            finite[name] = value
        else:
            yield f"not_finite/{name}", 1.0
    yield from finite.items()
    for mean, pattern in _TESTS.items():
        if values := [value for name, value in finite.items() if pattern.fullmatch(name)]:
            yield mean, fmean(values)


def import_log(file: Path, *, root: Path, run_id: str) -> RunFolder:
    """Makes a run of a log, with times counted back from the file's; ValueError without steps."""
    text = file.read_text(encoding="utf-8", errors="replace")
    rows, failure = read_log(text), find_failure(text)
    if not rows:
        raise ValueError(f"{file} holds no line like step:2 - critic/kl:-0.001 - ...")
    run = RunFolder.under(root, run_id)
    if run.path.exists():
        raise ValueError(f"a run {run_id} exists already: choose another name with run_id=NAME")
    steps: list[dict[str, Any]] = []
    time = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    for step, row in sorted(rows.items(), reverse=True):
        epoch = int(row.get("training/epoch", row.get("epoch", 0)))
        head = {"step": step, "epoch": epoch, "time": time.isoformat(timespec="milliseconds")}
        steps.insert(0, head | {k: v for k, v in row.items() if k != "epoch"})
        time -= timedelta(seconds=row.get("timing_s/step", 0.0))
    why = f": {failure.says}: {failure.line}" if failure else ""
    record = RunRecord(
        run_id=run_id,
        preset=IMPORTED,
        status="failed" if failure else "finished",
        steps=max(rows),
        reason=f"imported from {file.name}{why}",
        next_step=failure.remedy if failure else None,
        started_at=steps[0]["time"],
        finished_at=steps[-1]["time"],
    )
    run.path.mkdir(parents=True)
    lines = "".join(f"{json.dumps(step)}\n" for step in steps)
    write_text_atomically(run.path / "metrics.jsonl", lines)
    write_text_atomically(run.path / "run.json", record.model_dump_json(indent=2) + "\n")
    return run
