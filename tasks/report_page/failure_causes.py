"""What a failure means and what to do about it, by the table `failures.yaml` beside this file.

Read by the report, by a run's last words, by the command line and of logs that are imported.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import yaml

from rl_core.system.words import cut, in_one_line, printable

_LONGEST: Final = 300


@dataclass(frozen=True)
class Failure:
    """A failure as a log tells it, and what to do about it."""

    says: str
    line: str
    """Of the log, cut where it is very long."""
    remedy: str


@dataclass(frozen=True)
class Cause:
    """A row of the table."""

    errors: frozenset[str]
    """Names of types."""
    pattern: re.Pattern[str]
    says: str
    remedy: str
    here: str
    """The remedy where the run is known, to be formatted with `error`, `run` and so on."""

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> Cause:
        """Returns a cause; one without patterns fits no text."""
        pattern = re.compile("|".join(row.get("patterns", ["(?!)"])))
        remedy = row.get("remedy", "")
        errors = frozenset(row.get("errors", ()))
        return cls(errors, pattern, row.get("says", ""), remedy, row.get("here", remedy))


_TABLE: Final = yaml.load(
    Path(__file__).with_name("failures.yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
_CAUSES: Final = [Cause.of_row(row) for row in _TABLE["ended"]]
SURVIVED: Final = [
    (re.compile(row["pattern"]), row["what"], row["how"]) for row in _TABLE["survived"]
]
"""What a run's log says, with the step; what that was; how the run went on."""
_ERROR: Final = re.compile(r"^\s*(?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt|Exit))\b:? ?(.*)$")
_TRACEBACK: Final = "Traceback (most recent call last)"
PREFIX: Final = re.compile(r"^\s*\(\w+ pid=\d+(?:, ip=[^)]*)?\) ?")
"""Ray's, before each line of a worker."""
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


def cause_of(error: BaseException) -> Cause | None:
    """Returns the cause of an error, by its type or else by its text."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = f"{type(error).__name__}: {error}"
    by_type = (cause for cause in _CAUSES if cause.errors & kinds)
    by_text = (cause for cause in _CAUSES if cause.pattern.search(text))
    return next(chain(by_type, by_text), None)


def is_of_a_program(text: str) -> bool:
    """Says whether a text is what a program printed: a traceback, or lines of Ray's workers."""
    return _TRACEBACK in text or any(
        PREFIX.match(line) is not None for line in _plain(text).splitlines()
    )


def find_failure(text: str) -> Failure | None:
    """Returns what ended a program, as the end of its log or a traceback tells it, if it does.

    Of several known causes the first that stands in the last part with an error counts: what
    follows it are its consequences. Without one it is the last line that names an error.
    """
    lines = [PREFIX.sub("", line) for line in _plain(text).splitlines()]
    begins = _where_it_ends(lines)
    if begins is None:
        return None
    for line in lines[begins:]:
        for cause in _CAUSES:
            if cause.pattern.search(line):
                return Failure(_in_detail(cause, line, lines[begins:]), _short(line), cause.remedy)
    named = [line for line in lines[begins:] if _ERROR.match(line)]
    if not named:
        return None
    return Failure(
        "the program ended with an error", _short(named[-1]), "the traceback above it says where"
    )


def _plain(text: str) -> str:
    return COLOURS.sub("", text)


def _where_it_ends(lines: list[str]) -> int | None:
    """Returns the line behind the last step, if an error stands there; without a step, the first.

    A run that went on after an error has logged more steps.
    """
    steps = [i for i, line in enumerate(lines) if re.match(r"\s*step:\d+ - ", line)]
    begins = steps[-1] + 1 if steps else 0
    after = lines[begins:]
    is_error = any(
        _TRACEBACK in line or _ERROR.match(line) or any(c.pattern.search(line) for c in _CAUSES)
        for line in after
    )
    return begins if is_error else None


def _in_detail(cause: Cause, line: str, lines: list[str]) -> str:
    """Returns what a cause says, of memory with the bytes and the phase, where the log has them."""
    if "memory is full" not in cause.says:
        return cause.says
    asked = _GIB.search(line)
    frames = [other for other in lines if other.lstrip().startswith("File ")]
    said = " ".join(frames)
    phase = next((name for name, pattern in _PHASES.items() if re.search(pattern, said)), None)
    during = f" during {phase}" if phase else ""
    return f"{cause.says}{during}{f', {asked[1]} more were asked for' if asked else ''}"


def _short(line: str) -> str:
    return cut(printable(in_one_line(line)), _LONGEST)
