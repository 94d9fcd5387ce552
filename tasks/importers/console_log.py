"""Turns a console log in verl's format into a run that SQL, report and diagnosis read.

(main_task pid=3107) step:2 - critic/kl:-0.001 - critic/score/mean:0.036 - ...
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import IMPORTED, RunFolder, RunRecord
from rl_core.runs.settings_file import leaves, settings_as_yaml
from rl_core.system.atomic import write_text_atomically
from tasks.report_page.failure_causes import COLOURS, PREFIX, find_failure

_STEP = re.compile(r"(?:^|\s)step:(?P<step>\d+) - (?P<metrics>.+)$")
_METRIC = re.compile(
    r"^(?P<name>[\w/.@=-]+):(?:np\.\w+\()?"
    r"(?P<value>[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|nan|NaN|inf|Infinity))\)?$"
)
_OURS: Final = {"actor/entropy": "actor/entropy_loss"}
"""Names that verl has changed since, by today's."""
_MOST_LINES: Final = 2_000
"""Of a dictionary of settings: verl's has 130 to 400."""
_TEST_SCORE: Final = re.compile(r"val/test_score/.+|val-core/.+/(?:reward|score)/mean@\d+")
"""verl's names of the mean score of a test, per data source."""
_TEST_ACCURACY: Final = re.compile(r"val-core/.+/acc/mean@\d+")
NOT_FINITE: Final = "not_finite/"
"""Before the name of a metric, in the steps in which it is no finite number."""
_OTHERS: Final = {
    "TRL": re.compile(r"\{'loss': [^}]*'(?:reward|rewards/[^']+)': "),
    "OpenRLHF": re.compile(r"Episode \[\d+/\d+\].*policy_loss=|\bpolicy_loss=.*\bact_lr="),
}

Row = dict[str, float]


def is_log(text: str) -> bool:
    """Says whether a text holds steps in verl's format."""
    return next(_rows(text), None) is not None


def read_log(text: str) -> dict[int, Row]:
    """Returns the metrics by step; of a step that was done again, the last.

    Colours, Ray's prefixes, other lines and what is cut short are left out. A value that is no
    finite number is left out as well, and `not_finite/NAME` is 1 in its place. The mean of the test
    scores (`val/test_score/NAME`, `val-core/NAME/reward/mean@1`) is `val/score` too, that of
    `val-core/NAME/acc/mean@1` `val/accuracy`.
    """
    return dict(_rows(text))


def other_trainer(text: str) -> str | None:
    """Returns whose log it is where it is TRL's or OpenRLHF's, which are not read."""
    return next((name for name, pattern in _OTHERS.items() if pattern.search(text)), None)


def logged_settings(text: str) -> dict[str, Any]:
    """Returns verl's settings as such a log holds them before the first step, by dotted key.

    verl prints them resolved, as a dictionary in Python's writing; empty where that is not there,
    or cut short.
    """
    lines = [COLOURS.sub("", line) for line in text.splitlines()]
    # The prefix names the process that wrote a line.
    said = [(found[0] if (found := PREFIX.match(line)) else "", line) for line in lines]
    for start, (writer, line) in enumerate(said):
        if not line.removeprefix(writer).startswith("{'"):
            continue
        # Other processes' lines may stand between, and those of libraries, which begin with a word.
        own = [other.removeprefix(writer) for name, other in said[start:] if name == writer]
        within = [own[0], *(other for other in own[1:] if other[:1].isspace())]
        if (tree := _dictionary(within)) is not None:
            return dict(leaves(tree))
    return {}


def _dictionary(lines: list[str]) -> dict[str, Any] | None:
    """Reads a dictionary that begins in the first line, and ends where its brackets do."""
    for end, line in enumerate(lines[:_MOST_LINES], start=1):
        if not line.rstrip().endswith("}"):
            continue
        try:
            tree = ast.literal_eval("\n".join(lines[:end]))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
        return tree if isinstance(tree, dict) else None
    return None


def _rows(text: str) -> Iterator[tuple[int, Row]]:
    for line in text.splitlines():
        match = _STEP.search(COLOURS.sub("", line))
        if match is not None and (row := dict(_metrics(match["metrics"]))):
            yield int(match["step"]), row


def _metrics(text: str) -> Iterator[tuple[str, float]]:
    tests: dict[str, list[float]] = {"val/score": [], "val/accuracy": []}
    for item in text.split(" - "):
        match = _METRIC.match(item.strip())
        if match is None:
            continue
        value = float(match["value"])
        name = _OURS.get(match["name"], match["name"])
        if not math.isfinite(value):
            yield f"{NOT_FINITE}{name}", 1.0
            continue
        yield name, value
        if _TEST_SCORE.fullmatch(name):
            tests["val/score"].append(value)
        elif _TEST_ACCURACY.fullmatch(name):
            tests["val/accuracy"].append(value)
    for name, values in tests.items():
        if values:
            yield name, fmean(values)


def import_log(
    file: Path, *, root: Path, run_id: str, settings: RunConfig | None = None
) -> RunFolder:
    """Makes a run of a log, and returns its folder.

    Step times, which such a log does not hold, are counted back from the file's own time. With
    `settings`, they count for runs of the same shape.

    Raises:
        ValueError: no step is in it, or a run of that name exists.
    """
    text = file.read_text(encoding="utf-8", errors="replace")
    rows, failure = read_log(text), find_failure(text)
    if not rows:
        raise ValueError(f"{file} holds no line like step:2 - critic/kl:-0.001 - ...")
    run = RunFolder.under(root, run_id)
    if run.path.exists():
        raise ValueError(f"a run {run_id} exists already: choose another name with run_id=NAME")
    steps = _steps(rows, datetime.fromtimestamp(file.stat().st_mtime, UTC))
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
    if settings is not None:
        write_text_atomically(run.path / "config.yaml", settings_as_yaml(settings))
    write_text_atomically(run.path / "run.json", record.model_dump_json(indent=2) + "\n")
    return run


def _steps(rows: dict[int, Row], ended: datetime) -> list[dict[str, Any]]:
    """Returns the rows of `metrics.jsonl`, oldest first."""
    steps: list[dict[str, Any]] = []
    time = ended
    for step, row in sorted(rows.items(), reverse=True):
        epoch = int(row.get("training/epoch", row.get("epoch", 0)))
        head = {"step": step, "epoch": epoch, "time": time.isoformat(timespec="milliseconds")}
        steps.append(head | {k: v for k, v in row.items() if k != "epoch"})
        time -= timedelta(seconds=row.get("timing_s/step", 0.0))
    return steps[::-1]
