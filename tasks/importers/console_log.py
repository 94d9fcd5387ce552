"""Turns a console log in verl's format, or the file of its logger, into a run of ours.

(main_task pid=3107) step:2 - critic/kl:-0.001 - critic/score/mean:0.036 - ...
{"step": 2, "data": {"critic/kl": -0.001, "critic/score/mean": 0.036, ...}}
"""

import codecs
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

import yaml

from rl_core.runs.run_folder import IMPORTED, RunFolder, RunRecord
from rl_core.system.atomic import write_text_atomically
from tasks.report_page.failures import COLOURS, PREFIX, find_failure

_STEP = re.compile(r"(?:^|\s)step:(?P<step>\d{1,12}) - (?P<metrics>.+)$")
_NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d*)?|(?:\d+(?:\.\d*)?|\.\d+)(?:e[-+]?\d+)?"
    r"|nan|inf(?:inity)?)"
)
# Also as numpy and torch print it: np.float64(0.5), tensor([0.5], device='cuda:0').
_VALUE = re.compile(rf"(?i:\s*(?:[\w.]+\()?\[?({_NUMBER})\]?(?:,[^()]*)?\)?)")
_METRIC = re.compile(rf"(?P<name>[\w/.@= +,-]+):(?P<value>{_VALUE.pattern})")
_LONGEST_METRIC: Final = 300  # characters; a longer one is no number
_OURS: Final = {"actor/entropy": "actor/entropy_loss"}  # verl has changed the name since
_TESTS: Final = {
    "val/score": re.compile(r"val/test_score/.+|val-core/.+/(?:reward|score)/mean@\d+"),
    "val/accuracy": re.compile(r"val-core/.+/acc/mean@\d+"),
}
"""The mean over all data sources: verl's names of one of them."""

_OF_OTHERS: Final = {
    (whose, kind): re.compile("|".join(patterns))
    for whose, row in yaml.safe_load(
        Path(__file__).with_name("others.yaml").read_text(encoding="utf-8")
    ).items()
    for kind, patterns in row.items()
}
"""What the scripts and logs of other trainers than verl hold."""
_LONGEST_LINE: Final = 2_000  # characters of a line that are looked at for that

_Row = dict[str, float]


@dataclass
class Log:
    """The runs in a log, as metrics by step, and what could not be read."""

    runs: list[dict[int, _Row]] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)  # metrics that are no numbers

    @property
    def rows(self) -> dict[int, _Row]:
        """The last run's; of a step that was done again, the last."""
        return self.runs[-1] if self.runs else {}


def read_text(file: Path) -> str:
    """Returns a file's text with its line ends, from UTF-8 or, as PowerShell writes it, UTF-16."""
    data = file.read_bytes()
    encoding = "utf-8"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in data[:2]:
        encoding = "utf-16-be" if data[:1] == b"\0" else "utf-16-le"
    mark = "" if encoding == "utf-8" else "\ufeff"  # which decoding takes away, and bash reads
    return mark + data.decode(encoding, errors="replace")


def other_trainer(text: str, kind: Literal["script", "log"]) -> str | None:
    """Returns the name of the trainer of which a script or log is; None if it is none known."""
    lines = [
        line[:_LONGEST_LINE] for line in text.splitlines() if not line.lstrip().startswith("#")
    ]
    matches = (
        str(whose)
        for (whose, this), pattern in _OF_OTHERS.items()
        if this == kind and any(map(pattern.search, lines))
    )
    return next(matches, None)


def read_log(text: str) -> Log:
    """Returns the runs in a log: another one begins where steps begin again at 0 or 1.

    `not_finite/NAME` is 1 for a value that is not finite; `val/score` is the tests' mean score.
    """
    log = Log()
    of_process: dict[str, dict[int, _Row]] = {}  # two may print in turns
    for line in text.splitlines():
        line = COLOURS.sub("", line).lstrip("\ufeff")
        if (numbered := _step_of(line)) is None:
            continue
        step, texts = numbered
        prefix = PREFIX.match(line)
        process = prefix[0] if prefix else ""
        rows = of_process.get(process, log.rows)
        row = dict(_metrics(texts, log.unread))
        if not row or rows.get(step) == row:
            continue
        if not log.runs or (step <= 1 and max(rows) >= step):
            rows = {}
            log.runs.append(rows)
        of_process[process] = rows
        rows[step] = row
    return log


def _step_of(line: str) -> tuple[int, dict[str, str]] | None:
    """Returns a line's step and the texts of its metrics, if it has one."""
    if (match := _STEP.search(line)) is not None:
        items = (item.strip() for item in match["metrics"].split(" - "))
        matches = ((_METRIC.fullmatch(item[:_LONGEST_METRIC]), item) for item in items)
        pairs = ((m["name"], m["value"]) if m else item.partition(":")[::2] for m, item in matches)
        return int(match["step"]), {name: value for name, value in pairs if value}
    if not line.startswith("{") or '"step"' not in line:
        return None
    try:
        record = json.loads(line)
        step = record.pop("step")
        values = record.get("data", record).items()
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        return None
    plain = {name: str(value) for name, value in values if not isinstance(value, list | dict)}
    return (step, plain) if type(step) is int and 0 <= step < 10**12 else None


def _metrics(texts: dict[str, str], unread: dict[str, str]) -> Iterator[tuple[str, float]]:
    finite: dict[str, float] = {}
    for name, text in texts.items():
        name = _OURS.get(name, name)
        match = _VALUE.fullmatch(text) if len(text) <= _LONGEST_METRIC else None
        if match is None:
            unread.setdefault(name, text)
        elif math.isfinite(value := float(match[1].replace(",", ""))):
            finite[name] = value
        else:
            yield f"not_finite/{name}", 1.0
    yield from finite.items()
    for mean, pattern in _TESTS.items():
        if values := [value for name, value in finite.items() if pattern.fullmatch(name)]:
            yield mean, fmean(values)


def import_log(file: Path, *, root: Path, run_id: str) -> RunFolder:
    """Makes a run of a log, with times counted back from the file's; ValueError without steps."""
    text = read_text(file)
    rows = read_log(text).rows
    failure = find_failure(text)
    if not rows:
        raise ValueError(f"{file} holds no line like step:2 - critic/kl:-0.001 - ...")
    run = RunFolder.under(root, run_id)
    if run.path.exists():
        raise ValueError(f"a run {run_id} exists already: choose another name with run_id=NAME")
    steps: list[dict[str, Any]] = []
    time = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    for step, row in sorted(rows.items(), reverse=True):
        head = {
            "step": step,
            "epoch": int(row.get("training/epoch", row.get("epoch", 0))),
            "time": time.isoformat(timespec="milliseconds"),
        }
        steps.insert(0, head | {k: v for k, v in row.items() if k not in ("epoch", *head)})
        seconds = min(max(row.get("timing_s/step", 0.0), 0), 86_400)
        time = max(time - timedelta(seconds=seconds), datetime.fromtimestamp(0, UTC))
    record = RunRecord(
        run_id=run_id,
        preset=IMPORTED,
        status="failed" if failure else "finished",
        steps=max(rows),
        reason=f"imported from {file.name}"
        + (f": {failure.says}: {failure.line}" if failure else ""),
        next_step=failure.remedy if failure else None,
        started_at=steps[0]["time"],
        finished_at=steps[-1]["time"],
    )
    run.path.mkdir(parents=True)
    write_text_atomically(
        run.path / "metrics.jsonl", "".join(f"{json.dumps(step)}\n" for step in steps)
    )
    write_text_atomically(run.path / "run.json", record.model_dump_json(indent=2) + "\n")
    return run
