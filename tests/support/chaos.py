"""The ledger of injected faults: what tests of survival report, printed as a table at the end."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest

_PROPERTY: Final = "survived"


@dataclass(frozen=True)
class Survived:
    """One injected fault and what it cost."""

    kind: str
    """The row of the table: `OOM`, `ENOSPC`, `SIGKILL`, `wandb`, `corrupt checkpoint`, ..."""
    where: str
    """Phase, file or process that the fault hit."""
    steps_lost: int
    """Training steps that had to be done again."""
    rows_lost: int
    """Finished metrics or rollouts, or good checkpoints, that are gone: must be 0.

    Counted by the test, or left at 0 by one that asserts in another way what must still be there.
    """


@dataclass
class Ledger:
    """Collects the faults of a test, as properties that its report carries between processes."""

    properties: list[tuple[str, object]] = field(default_factory=list)

    def __call__(self, kind: str, where: str, *, steps_lost: int = 0, rows_lost: int = 0) -> None:
        """Notes a fault that was survived; called by a test after its last assertion.

        Raises:
            AssertionError: data was lost, which no fault excuses.
        """
        assert rows_lost == 0, f"{kind} at {where} cost {rows_lost} rows or checkpoints"
        self.properties.append((_PROPERTY, [kind, where, steps_lost, rows_lost]))


def faults_of(reports: Iterable[pytest.TestReport]) -> list[Survived]:
    """Returns the faults that the reports of tests carry."""
    return [
        Survived(*noted)
        for report in reports
        if report.when == "call"
        for name, noted in report.user_properties
        if name == _PROPERTY
    ]


def as_table(survived: Sequence[Survived], died: Sequence[str]) -> list[str]:
    """Returns a row per kind of fault, below it where it struck, the sum, and the failed tests."""
    lines = [f"{'fault':20}{'injected':>10}{'survived':>10}{'steps redone':>14}{'data lost':>11}"]

    def row(name: str, faults: Sequence[Survived], num_died: int) -> str:
        steps = sum(fault.steps_lost for fault in faults)
        rows = sum(fault.rows_lost for fault in faults)
        return f"{name:20}{len(faults) + num_died:>10}{len(faults):>10}{steps:>14}{rows:>11}"

    for kind in dict.fromkeys(fault.kind for fault in survived):
        of_kind = [fault for fault in survived if fault.kind == kind]
        lines.append(row(kind, of_kind, 0))
        places = Counter(fault.where for fault in of_kind)
        lines += [f"    {place}{f' x {n}' if n > 1 else ''}" for place, n in places.items()]
    lines.append(row("all", survived, len(died)))
    return lines + [f"NOT survived: {name}" for name in died]
