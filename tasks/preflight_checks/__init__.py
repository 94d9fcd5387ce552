"""Preflight's checks, and a finding: what one check found and what to do about it."""

from dataclasses import dataclass, field
from functools import partial
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """One thing that was checked."""

    check: str
    level: Literal["ok", "warning", "fatal"] = field(kw_only=True)
    message: str
    remedy: str = ""
    overrides: str = ""  # settings to add to the command; the message's plan is with them

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


ok = partial(Finding, level="ok")
warning = partial(Finding, level="warning")
fatal = partial(Finding, level="fatal")


def refused(check: str, error: object) -> Finding:
    """Returns a fatal finding; the error's text after its last colon is the remedy."""
    message, _, remedy = str(error).rpartition(": ")
    return fatal(check, message, remedy)


class PreflightError(ValueError):
    """Something would stop the run; the message names it and its remedy."""
