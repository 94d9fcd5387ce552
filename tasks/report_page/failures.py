"""What ended a run or what it survived, and what to do: by the table `failures.yaml`."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any, Final

import yaml

from rl_core.runs.metrics_log import MOST_LOG_BYTES
from rl_core.runs.run_folder import AFTER, RunFolder, RunRecord
from rl_core.system.plain_files import read_plain
from rl_core.system.words import counted, cut, in_one_line, printable

_LONGEST: Final = 300


@dataclass(frozen=True)
class Failure:
    """A failure that a log shows, and what to do about it."""

    says: str
    line: str  # of the log, cut if it is very long
    remedy: str


@dataclass(frozen=True)
class Cause:
    """A row of the table."""

    errors: frozenset[str]  # names of types
    pattern: re.Pattern[str]
    says: str
    remedy: str
    here: str  # the remedy if the run is known, to be formatted with `error`, `run` and so on


@dataclass(frozen=True)
class Fault:
    """One thing that went wrong, and how the run continued."""

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


_TABLE: Final = yaml.load(
    Path(__file__).with_name("failures.yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
_CAUSES: Final = [
    Cause(
        frozenset(row.get("errors", ())),
        re.compile("|".join(row.get("patterns", ["(?!)"]))),  # without patterns it fits no text
        row.get("says", ""),
        row.get("remedy", ""),
        row.get("here", row.get("remedy", "")),
    )
    for row in _TABLE["ended"]
]
_SURVIVED: Final = [
    (re.compile(row["pattern"]), row["what"], row["how"]) for row in _TABLE["survived"]
]
"""A pattern of log lines, with the step; what went wrong; how the run continued."""
_ERROR: Final = re.compile(r"\s*[\w.]*(?:Error|Exception|Interrupt|Exit)\b")
_STEP: Final = re.compile(r"\s*(?:step:\d+ - |\{\"step\": )")
_LONGEST_LINE: Final = 2_000  # characters of a line that are looked at

PREFIX: Final = re.compile(r"^\s*\(\w+ pid=\d+(?:, ip=[^)]*)?\) ?")
"""Ray's prefix of each line that a worker prints."""
COLOURS: Final = re.compile(r"\x1b?\[[0-9;]*m")  # without the escape if it was copied by hand
_GIB: Final = re.compile(r"[Tt]ried to allocate ([\d.]+ [KMGT]i?B)")
_PHASES: Final = {
    "update_actor": r"update_(actor|policy)",
    "update_critic": r"update_critic",
    "old_log_prob": r"compute_(old_)?log_prob",
    "ref": r"compute_ref_log_prob",
    "values": r"compute_values",
    "gen": r"generate_sequences|\bvllm\b|rollout",
}
_MOST_WARNINGS: Final = 40
_WARNING: Final = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)Z "
    r"(?P<level>WARNING|ERROR|CRITICAL) (?P<logger>[\w.]+): (?P<message>.*)"
)


def cause_of(error: BaseException) -> Cause | None:
    """Returns the cause of an error, by its type or else by its text."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = f"{type(error).__name__}: {error}"
    by_type = (cause for cause in _CAUSES if cause.errors & kinds)
    by_text = (cause for cause in _CAUSES if cause.pattern.search(text))
    return next(chain(by_type, by_text), None)


def is_of_a_program(text: str) -> bool:
    """Returns whether a text is what a program printed: a traceback, or lines of Ray's workers."""
    lines = COLOURS.sub("", text).splitlines()
    return "Traceback (most recent call last)" in text or any(map(PREFIX.match, lines))


def find_failure(text: str) -> Failure | None:
    """Returns what ended a program, if its log shows that after the last step.

    It is the first known cause, as later ones are its consequences; else the last line with an
    error.
    """
    cut_lines = (line[:_LONGEST_LINE] for line in text.splitlines())
    lines = [PREFIX.sub("", COLOURS.sub("", line)) for line in cut_lines]
    steps = [i for i, line in enumerate(lines) if _STEP.match(line)]
    last = lines[steps[-1] + 1 :] if steps else lines
    for line, cause in product(last, _CAUSES):
        if cause.pattern.search(line):
            return Failure(_in_detail(cause, line, last), _short(line), cause.remedy)
    named = [line for line in last if _ERROR.match(line)]
    if not named:
        return None
    where = "the traceback above it says where"
    if "Traceback (most recent call last)" not in text:
        where = "import its whole log: the first error in it is the cause"
    return Failure("the program ended with an error", _short(named[-1]), where)


def _in_detail(cause: Cause, line: str, lines: list[str]) -> str:
    """Returns what a cause says; for memory, with bytes and phase if the log has them."""
    if "memory is full" not in cause.says:
        return cause.says
    requested = _GIB.search(line)
    frames = " ".join(other for other in lines if other.lstrip().startswith("File "))
    phase = next((name for name, pattern in _PHASES.items() if re.search(pattern, frames)), None)
    during = f" during {phase}" if phase else ""
    return f"{cause.says}{during}{f', {requested[1]} more were asked for' if requested else ''}"


def _short(line: str) -> str:
    return cut(printable(in_one_line(line)), _LONGEST)


def faults(run: Path, record: RunRecord) -> list[Fault]:
    """Returns what the run's record, metrics, log and checkpoints say went wrong."""
    rows = RunFolder(run).metrics.read()
    survived = [*later_attempts(record), *_out_of_memory(rows)]
    if died := {row["step"]: int(n) for row in rows if (n := row.get("rollout/engine_restarts"))}:
        survived.append(
            Fault(
                f"step {next(iter(died))}",
                f"a rollout engine died, {counted(sum(died.values()), 'time')}",
                "started again, its responses asked once more, the result unchanged",
            )
        )
    # From the log: on a full disk the metrics may not have been written.
    return survived + [
        Fault(f"step {match[1]}", f"{what}, {counted(line.count, 'time')}", how)
        for line in warnings(run)
        for pattern, what, how in _SURVIVED
        if (match := pattern.search(line.message)) is not None
    ]


def later_attempts(record: RunRecord) -> list[Fault]:
    """Returns why the run was started again, each time, and what was changed for it."""
    attempts = []
    for number, attempt in enumerate(record.attempts[1:], start=2):
        is_continued = attempt.reason == "continued" or attempt.reason.startswith(AFTER)
        how = "continued" if is_continued else "retried"
        what = "interrupted" if attempt.reason == "continued" else attempt.reason
        changes = f" with {attempt.changed}" if attempt.changed else ""
        how += f" from step {attempt.from_step}{changes}"
        attempts.append(Fault(f"attempt {number}", what.removeprefix(AFTER), how))
    return attempts


def warnings(run: Path) -> list[LoggedWarning]:
    """Returns the warnings in the run's log, the first of each kind, oldest first."""
    seen: dict[str, LoggedWarning] = {}
    try:
        log = read_plain(run / "log.txt", below=run, most_bytes=MOST_LOG_BYTES)
    except (FileNotFoundError, ValueError):
        return []
    lines = (line[:_LONGEST_LINE] for line in log.decode(errors="replace").splitlines())
    for match in filter(None, map(_WARNING.fullmatch, lines)):
        key = re.sub(r"\d+", "0", match["message"])  # the same in every step
        first = LoggedWarning(match["time"].replace("T", " "), "", match["message"], 0)
        before = seen.get(key, first)
        seen[key] = replace(before, level=match["level"], count=before.count + 1)
    return list(seen.values())[:_MOST_WARNINGS]


def _out_of_memory(rows: Iterable[dict[str, Any]]) -> list[Fault]:
    """Returns, by phase, how often a pass did not fit into memory and what fitted then."""
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    left: dict[str, str] = {}
    for row in rows:
        times = {name: n for name, n in row.items() if name.startswith("memory/oom/") and n}
        for name, number in times.items():
            phase = name.removeprefix("memory/oom/")
            counts[phase] += int(number)
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
