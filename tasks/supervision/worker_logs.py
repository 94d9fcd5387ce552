"""Passes the log lines of learner and engines on to the logger of the process above them.

Each writes all of its output to a file of its own. Passed on are warnings and errors, and all lines
of our own loggers from INFO up; other output of libraries (banners, progress) is noise.
"""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from rl_core.system.log_file import Log
from rl_core.system.redaction import redact
from rl_core.system.words import cut, printable
from tasks.prefect_ui.artifacts import in_background

TRAINER_LOGGER: Final = "tasks.train"  # the caller's own logger gets what the trainer logs here
_CHILDREN: Final = ("trainer", "evaluator", "sft")  # they send their lines to their parent
_POLL_S: Final = 2.0
_READ_BYTES: Final = 2**16  # of a file in one look; of more, only the end is read
_LINES: Final = 20  # passed on of a file in one look; the others are counted
_LINE_CHARACTERS: Final = 500
_REMEMBERED: Final = 1_000
_NUMBERS: Final = re.compile(r"\d+(?:\.\d+)?")

_SHORT: Final = {"E": logging.ERROR, "F": logging.CRITICAL, "C": logging.CRITICAL}
_LEVELS: Final = logging.getLevelNamesMapping() | _SHORT
_OURS: Final = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (?P<level>INFO|WARNING|ERROR|CRITICAL) "
    r"(?:rl_core|tasks)[\w.]*: (?P<text>.*)"
)
_OTHERS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # vLLM: "(EngineCore pid=9) WARNING 11-21 20:46:16 [cpu.py:123] text"
        r"(?:\([^()]{1,60}\) )?(?P<level>WARNING|ERROR|CRITICAL) \d\d-\d\d [\d:.]+ (?P<text>.*)",
        # Ray's C++: "[2026-11-21 20:46:16,123 E 9 9] worker.cc:1: text"
        r"\[[\d\- :,]{19,} (?P<level>[EFC]) \d+ \d+\] (?P<text>.*)",
        # torch: "[E1121 20:46:16.123 file.cpp:1] text"; its warnings are Python's, in C++
        r"(?:\[rank\d+\]:)?\[(?P<level>[EF])\d{4} [\d:.]+ (?P<text>.*)",
        # logging's default, of a library that was given no format: "WARNING:name:text"
        r"(?P<level>WARNING|ERROR|CRITICAL):[\w.]+:(?P<text>.*)",
        # How Python, its interpreter and C++ end a process.
        r"(?P<text>(?:[\w.]+\.)?\w*(?:Error|Exception)(?::.*)?)",
        r"(?P<text>Fatal Python error: .*)",
        r"(?P<text>terminate called .*)",
        r"(?P<text>(?:CUDA error|Segmentation fault).*)",
    )
)


def worth_telling(line: str) -> tuple[int, str] | None:
    """Returns level and text of a worker's line that people should see, None for any other."""
    for pattern in (_OURS, *_OTHERS):
        if match := pattern.fullmatch(line.rstrip()):
            level = match.groupdict().get("level")
            return _LEVELS[level] if level else logging.ERROR, match["text"]
    return None


class _Tail:
    """Reads one file: what is added from now on, or all of it."""

    def __init__(self, path: Path, *, from_start: bool) -> None:
        self.path = path
        self._offset = 0 if from_start else path.stat().st_size
        self._kinds: set[str] = set()

    def look(self, logger: Log, *, at_end: bool) -> None:
        """Passes on new lines; of those that differ only in their numbers, only the first."""
        size = self.path.stat().st_size
        start = max(self._offset, size - _READ_BYTES)
        with self.path.open("rb") as file:
            file.seek(start)
            data = file.read(size - start)
        end = len(data) if at_end else data.rfind(b"\n") + 1
        self._offset = start + end
        new = []
        for line in data[:end].decode(errors="replace").splitlines():
            finding = worth_telling(line)
            kind = _NUMBERS.sub("0", finding[1]) if finding else ""
            if finding and kind not in self._kinds and len(self._kinds) < _REMEMBERED:
                self._kinds.add(kind)
                new.append(finding)
        for level, text in new[:_LINES]:
            line = cut(printable(redact(text)), _LINE_CHARACTERS)
            logger.log(level, "%s: %s", self.path.stem, line)
        if (left := len(new) - _LINES) > 0:
            logger.warning("%s: %d more lines, in %s", self.path.stem, left, self.path)


@contextmanager
def worker_logs(folder: Path, logger: Log) -> Iterator[None]:
    """Passes on what learner and engines say within the block, each thing once: `engine_0: text`.

    A thread looks into their files now and then: that costs the workers nothing.
    """
    tails = {path: _Tail(path, from_start=False) for path in _files(folder)}
    over = threading.Event()

    def look(*, at_end: bool) -> None:
        for path in _files(folder):
            with suppress(OSError):
                tails.setdefault(path, _Tail(path, from_start=True)).look(logger, at_end=at_end)

    def watch() -> None:
        while not over.wait(_POLL_S):
            look(at_end=False)

    thread = in_background(watch)
    try:
        yield
    finally:
        over.set()
        thread.join()
        look(at_end=True)


def _files(folder: Path) -> list[Path]:
    """Returns the files of learner and engines."""
    return [path for path in folder.glob("*.log") if path.stem not in _CHILDREN]
