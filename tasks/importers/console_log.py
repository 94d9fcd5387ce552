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
from typing import Any, Final

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import IMPORTED, RunFolder, RunRecord, settings_as_yaml
from rl_core.runs.settings_file import leaves
from rl_core.system.atomic import write_text_atomically

_STEP = re.compile(r"(?:^|\s)step:(?P<step>\d+) - (?P<metrics>.+)$")
_METRIC = re.compile(r"^(?P<name>[\w/.@=-]+):(?:np\.float\d+\()?(?P<value>[^()\s]+)\)?$")
_PREFIX = re.compile(r"^\s*\(\w+ pid=\d+(?:, ip=[^)]*)?\) ?")
"""Ray's, before each line of a worker."""
_COLOURS = re.compile(r"\x1b?\[[0-9;]*m")  # without the escape where it was copied by hand
_OURS: Final = {"actor/entropy": "actor/entropy_loss"}
"""Names that verl has changed since, by today's."""
_MOST_LINES: Final = 2_000
"""Of a dictionary of settings: verl's has 130 to 400."""
_TEST_SCORE: Final = "val/test_score/"

Row = dict[str, float]


def is_log(text: str) -> bool:
    """Says whether a text holds steps in verl's format."""
    return next(_rows(text), None) is not None


def read_log(text: str) -> dict[int, Row]:
    """Returns the metrics by step; of a step that was done again, the last.

    Colours, Ray's prefixes, other lines and what is cut short are left out, and so are values that
    are no finite numbers. A test score, `val/test_score/NAME`, is `val/score` too.
    """
    return dict(_rows(text))


def logged_settings(text: str) -> dict[str, Any]:
    """Returns verl's settings as such a log holds them before the first step, by dotted key.

    verl prints them resolved, as a dictionary in Python's writing; empty where that is not there,
    or cut short.
    """
    lines = [_PREFIX.sub("", _COLOURS.sub("", line)) for line in text.splitlines()]
    for start, line in enumerate(lines):
        if line.startswith("{'") and (tree := _dictionary(lines[start:])) is not None:
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
        match = _STEP.search(_COLOURS.sub("", line))
        if match is not None and (row := dict(_metrics(match["metrics"]))):
            yield int(match["step"]), row


def _metrics(text: str) -> Iterator[tuple[str, float]]:
    for item in text.split(" - "):
        match = _METRIC.match(item.strip())
        value = _number(match["value"]) if match is not None else None
        if match is not None and value is not None:
            name = _OURS.get(match["name"], match["name"])
            yield name, value
            if name.startswith(_TEST_SCORE):
                yield "val/score", value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def import_log(
    file: Path, *, root: Path, run_id: str, settings: RunConfig | None = None
) -> RunFolder:
    """Makes a run of a log, and returns its folder.

    Step times, which such a log does not hold, are counted back from the file's own time.

    Args:
        file: the log.
        root: `storage.root`.
        run_id: the run's name.
        settings: what it is a log of, where that is known: its step times then count for runs of
            the same shape.

    Raises:
        ValueError: no step is in it, or a run of that name exists.
    """
    rows = read_log(file.read_text(encoding="utf-8", errors="replace"))
    if not rows:
        raise ValueError(f"{file} holds no line like step:2 - critic/kl:-0.001 - ...")
    run = RunFolder.under(root, run_id)
    if run.path.exists():
        raise ValueError(f"a run {run_id} exists already: choose another name with run_id=NAME")
    ended = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    lines = _lines(rows, ended)
    record = RunRecord(
        run_id=run_id,
        preset=IMPORTED,
        status="finished",
        steps=max(rows),
        reason=f"imported from {file.name}",
        started_at=json.loads(lines[0])["time"],
        finished_at=json.loads(lines[-1])["time"],
    )
    run.path.mkdir(parents=True)
    write_text_atomically(run.path / "metrics.jsonl", "".join(f"{line}\n" for line in lines))
    if settings is not None:
        write_text_atomically(run.path / "config.yaml", settings_as_yaml(settings))
    write_text_atomically(run.path / "run.json", record.model_dump_json(indent=2) + "\n")
    return run


def _lines(rows: dict[int, Row], ended: datetime) -> list[str]:
    """Returns the lines of `metrics.jsonl`, oldest first."""
    lines = []
    time = ended
    for step in sorted(rows, reverse=True):
        row = rows[step]
        head = {
            "step": step,
            "epoch": int(row.get("training/epoch", row.get("epoch", 0))),
            "time": time.isoformat(timespec="milliseconds"),
        }
        lines.append(json.dumps(head | {k: v for k, v in row.items() if k != "epoch"}))
        time -= timedelta(seconds=row.get("timing_s/step", 0.0))
    return lines[::-1]
