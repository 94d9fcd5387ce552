"""What a run came through: attempts, memory and disk that ended, checkpoints, warnings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.runs.run_folder import AFTER, Attempt, RunFolder, RunRecord
from rl_core.system.words import counted
from tasks.report_page.failure_causes import SURVIVED

_MOST_WARNINGS = 40
_LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z "
    r"(?P<level>WARNING|ERROR|CRITICAL) (?P<logger>[\w.]+): (?P<message>.*)"
)


@dataclass(frozen=True)
class Fault:
    """One thing that went wrong, and how the run went on."""

    where: str
    """`attempt 2`, `step 12`, `checkpoint`."""
    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}, {self.how}"


@dataclass(frozen=True)
class LoggedWarning:
    """A line of the log, once for all lines that say the same."""

    time: str
    """Of the first, UTC."""
    level: str
    message: str
    count: int


def faults(run: Path, record: RunRecord) -> list[Fault]:
    """Returns what the run's record, metrics, log and checkpoints say went wrong."""
    rows = RunFolder(run).metrics.read()
    return [
        *later_attempts(record),
        *_out_of_memory(rows),
        *_engine_restarts(rows),
        *_full_disk(warnings(run)),
    ]


def later_attempts(record: RunRecord) -> list[Fault]:
    """Returns why the run was started again, each time, and what was other then."""
    return [_attempt(number, one) for number, one in enumerate(record.attempts, start=1)][1:]


def warnings(run: Path) -> list[LoggedWarning]:
    """Returns what the run's log warned of, the first time each, oldest first."""
    seen: dict[str, LoggedWarning] = {}
    try:
        lines = (run / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for match in filter(None, map(_LINE.fullmatch, lines)):
        key = re.sub(r"\d+", "0", match["message"])  # step by step the same
        before = seen.get(key)
        seen[key] = LoggedWarning(
            before.time if before else match["time"].replace("T", " "),
            match["level"],
            before.message if before else match["message"],
            before.count + 1 if before else 1,
        )
    return list(seen.values())[:_MOST_WARNINGS]


def _attempt(number: int, attempt: Attempt) -> Fault:
    if attempt.reason == "continued":
        what, how = "interrupted", "continued"
    elif attempt.reason.startswith(AFTER):
        what, how = attempt.reason.removeprefix(AFTER), "continued"
    else:
        what, how = attempt.reason, "retried"
    changes = f" with {attempt.changed}" if attempt.changed else ""
    return Fault(f"attempt {number}", what, f"{how} from step {attempt.from_step}{changes}")


def _out_of_memory(rows: Iterable[dict[str, Any]]) -> list[Fault]:
    """Returns, by phase, how often a pass did not fit and what fitted then."""
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    left: dict[str, str] = {}
    for row in rows:
        for name, value in row.items():
            phase = name.removeprefix("memory/oom/")
            if phase == name or not value:
                continue
            counts[phase] = counts.get(phase, 0) + int(value)
            first.setdefault(phase, row["step"])
            for unit, kind in (("tokens", "budget_tokens"), ("sequences", "budget_seqs")):
                if (budget := row.get(f"memory/{kind}/{phase}")) is not None:
                    left[phase] = f", {budget:g} {unit} at a time since"
    return [
        Fault(
            f"step {first[phase]}",
            f"out of memory in {phase}, {counted(counts[phase], 'time')}",
            f"split and done again, the result unchanged{left.get(phase, '')}",
        )
        for phase in sorted(counts, key=lambda phase: first[phase])
    ]


def _engine_restarts(rows: Iterable[dict[str, Any]]) -> list[Fault]:
    """Returns, as one, how often an engine died."""
    died = {row["step"]: int(n) for row in rows if (n := row.get("rollout/engine_restarts"))}
    what = f"a rollout engine died, {counted(sum(died.values()), 'time')}"
    how = "started again, its responses asked once more, the result unchanged"
    return [Fault(f"step {next(iter(died))}", what, how)] if died else []


def _full_disk(logged: Iterable[LoggedWarning]) -> list[Fault]:
    """Returns what found no room on the disk, by the log: metrics may be what found none."""
    return [
        Fault(f"step {match[1]}", f"{what}, {counted(line.count, 'time')}", how)
        for line in logged
        for pattern, what, how in SURVIVED
        if (match := pattern.search(line.message)) is not None
    ]
