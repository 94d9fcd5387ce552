"""One thing that preflight looked at, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    check: str
    level: Literal["ok", "warning", "fatal"]
    message: str
    remedy: str = ""
    overrides: str = ""
    """Settings to paste behind the command that was looked at; preflight has planned with them."""
    figures: dict[str, Any] = field(default_factory=dict)
    """The message's numbers, for programs, where it has more than one."""

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


def ok(check: str, message: str, remedy: str = "") -> Finding:
    """Returns a finding that is as it should be."""
    return Finding(check, "ok", message, remedy)


def warning(check: str, message: str, remedy: str = "", overrides: str = "") -> Finding:
    """Returns a finding that a run can do with."""
    return Finding(check, "warning", message, remedy, overrides)


def fatal(check: str, message: str, remedy: str = "") -> Finding:
    """Returns a finding that would stop a run."""
    return Finding(check, "fatal", message, remedy)


def refused(check: str, error: object) -> Finding:
    """Returns a refusal, whose words behind the last colon are the remedy."""
    message, _, remedy = str(error).rpartition(": ")
    return fatal(check, message, remedy)


class PreflightError(ValueError):
    """Something would stop the run; the message names it and its remedy."""
