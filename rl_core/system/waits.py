"""What a process waits for: the unfinished things of each phase, noted in a small file of the run.

    .waits           the training process, or the one that evaluates
    .waits_upload    the thread that publishes the run

The file takes its room on the disk at the first write and is overwritten in place, so it can also
say that the disk is full. A reader who meets half a write sees that by the checksum and reads
again: see rl_core/runs/waiting.py.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rl_core.system.atomic import open_own
from rl_core.system.redaction import redact
from rl_core.system.words import cut, in_one_line

OF_TRAINING: Final = ".waits"
OF_UPLOAD: Final = ".waits_upload"
START: Final = "start"
"""The phase in which Ray, engines and learner start; how long each took is kept."""
FIRST: Final = "first response"
ALL: Final = "all"
_INTERVAL_S: Final = 1.0
_BYTES: Final = 2**14
_SHOWN: Final = 3
_LONGEST: Final = 120
_LONGEST_TROUBLE: Final = 400
_ANSWERS: Final = ("gen", "evaluate")


@dataclass
class _Phase:
    since: float
    begun: int = 0
    unfinished: dict[Hashable, tuple[float, str, str]] = field(default_factory=dict)
    """By key, the oldest first: when it began, what it is and which process has it."""


class Waits:
    """Notes what begins and ends; any thread may do so.

    `tell` gets a phase's name when it begins or makes progress: the watchdog listens. `before`:
    seconds that the start has taken already, by phase, one after the other.
    """

    def __init__(
        self,
        file: Path | None = None,
        tell: Callable[[str], None] = lambda phase: None,
        before: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.tell = tell
        self._file = file
        self._lock = threading.Lock()
        self._phases: dict[str, _Phase] = {}
        self._troubles: dict[str, str] = {}
        self._start = self._step_at = time.monotonic()
        self._start -= sum(before.values())
        self._step = 0
        self._step_s = 0.0
        self.startup_s = {name: round(seconds, 2) for name, seconds in before.items()}
        """Seconds by phase of the start: `before`, then Ray and each process, side by side, then
        the first response; `all`: until then, or before it, until the first step began."""

    def begin(self, phase: str, key: Hashable, what: str = "", where: str = "") -> None:
        """Notes that a thing has begun, or begins again elsewhere."""
        now = time.monotonic()
        with self._lock:
            current = self._phases.setdefault(phase, _Phase(now))
            current.begun += current.unfinished.pop(key, None) is None
            current.unfinished[key] = now, what, where

    def end(self, phase: str, key: Hashable) -> None:
        """Notes that a thing has ended; one that is not known is none."""
        with self._lock:
            current = self._phases.get(phase)
            if current is None or (ended := current.unfinished.pop(key, None)) is None:
                return
            if not current.unfinished:
                del self._phases[phase]
            now = time.monotonic()
            if phase == START:
                self.startup_s[ended[1]] = round(now - ended[0], 2)
            elif phase in _ANSWERS and ALL in self.startup_s and FIRST not in self.startup_s:
                self.startup_s[FIRST] = round(now - self._step_at, 2)
                self.startup_s[ALL] = round(now - self._start, 2)

    @contextmanager
    def on(self, phase: str, what: str = "", where: str = "") -> Iterator[None]:
        """Notes that a thing happens in the block."""
        key = object()
        self.tell(phase)
        self.begin(phase, key, what, where)
        try:
            yield
        finally:
            self.end(phase, key)

    def trouble(self, phase: str, words: str | None) -> None:
        """Notes what is wrong in a phase although the run continues; None: nothing any more."""
        shown = cut(in_one_line(redact(words)), _LONGEST_TROUBLE) if words else None
        with self._lock:
            self._troubles.pop(phase, None)
            self._troubles |= {phase: shown} if shown else {}

    def step_done(self, step: int) -> None:
        """Notes that a step is done; the first call, that training begins after this step."""
        now = time.monotonic()
        with self._lock:
            if ALL in self.startup_s:
                self._step_s = now - self._step_at
            self.startup_s.setdefault(ALL, round(now - self._start, 2))
            self._step = step
            self._step_at = now

    @contextmanager
    def written(self) -> Iterator[Waits]:
        """Writes the file once a second within the block; a disk that fails only delays it."""
        over = threading.Event()

        def write() -> None:
            while not over.wait(_INTERVAL_S):
                self.write()

        thread = threading.Thread(target=write, name="waits", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()
            if self._file is not None:
                self._file.unlink(missing_ok=True)

    def write(self) -> None:
        """Writes the file now."""
        if self._file is None:
            return
        body = json.dumps(self._record(), ensure_ascii=False).encode(errors="replace")
        data = b"%08x%08x" % (zlib.crc32(body), len(body)) + body
        with suppress(OSError), open_own(self._file, "r+") as file:
            file.write(data.ljust(_BYTES))

    def _record(self) -> dict[str, Any]:
        now = time.monotonic()

        def shown(thing: tuple[float, str, str]) -> dict[str, Any]:
            since, what, where = thing
            age_s = round(now - since, 1)
            return {"what": cut(what, _LONGEST), "where": cut(where, _LONGEST), "age_s": age_s}

        with self._lock:
            phases = [
                {
                    "name": name,
                    "age_s": round(now - phase.since, 1),
                    "begun": phase.begun,
                    "unfinished": len(phase.unfinished),
                    "oldest": list(map(shown, itertools.islice(phase.unfinished.values(), _SHOWN))),
                }
                for name, phase in self._phases.items()
            ]
            return {
                "written_at": time.time(),
                "step": self._step,
                "last_step_s": round(self._step_s, 2),
                "step_age_s": round(now - self._step_at, 1),
                "phases": phases,
                "troubles": dict(self._troubles),
            }
