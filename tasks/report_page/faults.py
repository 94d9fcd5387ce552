"""What a run came through: attempts, memory and disk that ended, checkpoints, warnings."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rl_core.runs.run_folder import AFTER, RunFolder, RunRecord
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

    where: str  # `attempt 2`, `step 12`, `checkpoint`
    what: str
    how: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}, {self.how}"


@dataclass(frozen=True)
class LoggedWarning:
    """The first of all lines of the log that say the same."""

    time: str  # UTC
    level: str
    message: str
    count: int


def faults(run: Path, record: RunRecord) -> list[Fault]:
    """Returns what the run's record, metrics, log and checkpoints say went wrong."""
    rows = RunFolder(run).metrics.read()
    found = [*later_attempts(record), *_out_of_memory(rows)]
    if died := {row["step"]: int(n) for row in rows if (n := row.get("rollout/engine_restarts"))}:
        what = f"a rollout engine died, {counted(sum(died.values()), 'time')}"
        how = "started again, its responses asked once more, the result unchanged"
        found.append(Fault(f"step {next(iter(died))}", what, how))
    # By the log, as metrics may be what found no room on the disk.
    return found + [
        Fault(f"step {match[1]}", f"{what}, {counted(line.count, 'time')}", how)
        for line in warnings(run)
        for pattern, what, how in SURVIVED
        if (match := pattern.search(line.message)) is not None
    ]


def later_attempts(record: RunRecord) -> list[Fault]:
    """Returns why the run was started again, each time, and what was other then."""
    found = []
    for number, attempt in enumerate(record.attempts[1:], start=2):
        what, how = attempt.reason, "retried"
        if what == "continued":
            what, how = "interrupted", "continued"
        elif what.startswith(AFTER):
            what, how = what.removeprefix(AFTER), "continued"
        changes = f" with {attempt.changed}" if attempt.changed else ""
        how = f"{how} from step {attempt.from_step}{changes}"
        found.append(Fault(f"attempt {number}", what, how))
    return found


def warnings(run: Path) -> list[LoggedWarning]:
    """Returns what the run's log warned of, the first time each, oldest first."""
    seen: dict[str, LoggedWarning] = {}
    try:
        lines = (run / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for match in filter(None, map(_LINE.fullmatch, lines)):
        key = re.sub(r"\d+", "0", match["message"])  # step by step the same
        time, level, message = match["time"].replace("T", " "), match["level"], match["message"]
        before = seen.get(key, LoggedWarning(time, level, message, 0))
        seen[key] = replace(before, level=level, count=before.count + 1)
    return list(seen.values())[:_MOST_WARNINGS]


def _out_of_memory(rows: Iterable[dict[str, Any]]) -> list[Fault]:
    """Returns, by phase, how often a pass did not fit and what fitted then."""
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    left: dict[str, str] = {}
    for row in rows:
        for name, value in row.items():
            phase = name.removeprefix("memory/oom/")
            if phase == name or not value:
                continue
            counts[phase] += int(value)
            first.setdefault(phase, row["step"])
            for unit, kind in (("tokens", "budget_tokens"), ("sequences", "budget_seqs")):
                if (budget := row.get(f"memory/{kind}/{phase}")) is not None:
                    left[phase] = f", {budget:g} {unit} at a time since"
    return [
        Fault(
            f"step {step}",
            f"out of memory in {phase}, {counted(counts[phase], 'time')}",
            f"split and done again, the result unchanged{left.get(phase, '')}",
        )
        for phase, step in first.items()
    ]
