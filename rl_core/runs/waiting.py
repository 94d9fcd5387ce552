"""Reads and words what the processes of a run wait for (rl_core/system/waits.py).

The files may be a stranger's: what cannot be read is as if it were not there.
"""

import time
import zlib
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, Field

from rl_core.system.plain_files import parse_json, read_plain
from rl_core.system.waits import ALL, OF_TRAINING, OF_UPLOAD
from rl_core.system.words import cut, duration, printable

_MOST_BYTES: Final = 2**16
_HEAD: Final = 16
_TRIES: Final = 3
_SILENT_S: Final = 10.0
"""Seconds without a write, one a second, after which the process that writes is in doubt."""
_LONGEST_LINE: Final = 500
_ANSWERS: Final = ("gen", "evaluate")


class Thing(BaseModel, frozen=True):
    """Something unfinished: a response, a reward call, a save."""

    what: str
    where: str
    age_s: float


class Phase(BaseModel, frozen=True):
    """A phase with unfinished things, of which the oldest are named."""

    name: str
    age_s: float
    begun: int
    unfinished: int
    oldest: tuple[Thing, ...] = Field(max_length=10)

    def __str__(self) -> str:
        """Returns `gen for 90 s, 12 of 64 answered; oldest: problem 17, engine_0, 88 s`."""
        done = "answered" if self.name in _ANSWERS else "done"
        count = f", {self.begun - self.unfinished} of {self.begun} {done}"
        things = [(x.what, x.where, _age(x.age_s)) for x in self.oldest]
        named = "; ".join(", ".join(filter(None, parts)) for parts in things)
        return f"{self.name} for {_age(self.age_s)}{count if self.begun > 1 else ''}" + (
            f"{'; oldest' if self.begun > 1 else ''}: {named}" if named else ""
        )


def _age(seconds: float) -> str:
    """Returns `90 s`; ten minutes and more as `duration` does."""
    return f"{seconds:.0f} s" if seconds < 600 else duration(seconds)


class WaitRecord(BaseModel, frozen=True):
    """What one process waited for when it last wrote."""

    written_at: float
    step: int
    last_step_s: float
    step_age_s: float
    """Seconds since the last step was done, or training began."""
    phases: tuple[Phase, ...] = Field(max_length=20)
    troubles: dict[str, str] = Field(max_length=20)


def read_waits(run: Path, name: str = OF_TRAINING) -> WaitRecord | None:
    """Returns the record of a run's folder; None if there is none that can be read."""
    for _ in range(_TRIES):
        try:
            content = read_plain(run / name, below=run, most_bytes=_MOST_BYTES)
            body = content[_HEAD : _HEAD + int(content[8:_HEAD], 16)]
            if zlib.crc32(body) == int(content[:8], 16):
                return WaitRecord.model_validate(parse_json(body))
        except (OSError, ValueError):
            return None
        time.sleep(0.001)  # half of a write
    return None


def waits_in_words(run: Path) -> list[str]:
    """Returns what a run waits for, a line per phase, the longest first; its troubles follow."""
    records = [record for name in (OF_TRAINING, OF_UPLOAD) if (record := read_waits(run, name))]
    phases = sorted((x for one in records for x in one.phases), key=lambda phase: -phase.age_s)
    lines = [str(phase) for phase in phases]
    lines += [f"{k}: {words}" for record in records for k, words in record.troubles.items()]
    lines += [
        f"nothing was written for {_age(silent_s)}: the process is stopped, or its disk fails"
        for record in records
        if (silent_s := time.time() - record.written_at) > _SILENT_S
    ]
    return [printable(cut(line, _LONGEST_LINE)) for line in lines]


def step_in_words(run: Path) -> str | None:
    """Returns `the last step took 3 s, it was done 12 s ago`; None before the first."""
    record = read_waits(run)
    if record is None or not record.last_step_s:
        return None
    ago = _age(record.step_age_s)
    return f"step {record.step} took {record.last_step_s:.3g} s and was done {ago} ago"


def startup_in_words(seconds: dict[str, Any]) -> str:
    """Returns `14.2 s (engine_0 12.0 s, Ray 4.1 s)`, the slowest first."""
    parts = sorted(seconds.items(), key=lambda part: -part[1])
    named = ", ".join(f"{printable(name)} {s:.1f} s" for name, s in parts if name != ALL)
    return f"{seconds.get(ALL, 0.0):.1f} s" + (f" ({named})" if named else "")
