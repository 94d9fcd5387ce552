"""The receipt of a run: digests that are noted while it trains, and what an audit finds later.

    receipt.jsonl   {"step": 7, "rollouts": SHA256, "weights": [["learner", 7, DIGEST], ...]}
                    {"step": 5, "checkpoint": DIGEST}, when it has been saved
    audit.json      the last audit: `steps`, `at`, and its `lines`

`weights` are of the learner and of each engine that took weights since the line before: its name,
how many updates made them, and the digest of `rl_core.models.weight_digest`.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from rl_core.runs.metrics_log import MOST_LOG_BYTES, utc_now
from rl_core.system.atomic import append_line, write_text_atomically
from rl_core.system.plain_files import read_json, read_json_lines

Weights = tuple[str, int, str]
"""Who holds them (`learner`, `engine_0`), how many updates made them, and their digest."""
_AUDIT: Final = "audit.json"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Note:
    """A line of `receipt.jsonl`."""

    step: int
    rollouts: str | None = None
    """sha256 of the step's file of rollouts."""
    weights: tuple[Weights, ...] = ()
    checkpoint: str | None = None
    """`model_digest` of the step's checkpoint."""


@dataclass(frozen=True)
class AuditLine:
    """One thing that an audit compared."""

    subject: str
    outcome: Literal["holds", "note", "unknown", "FAILS"]
    """`note`: it holds, and there is something to know; `unknown`: it cannot be checked."""
    words: str
    """What was compared with what, or what is wrong."""


_NOTE: Final = TypeAdapter(Note)
_LINES: Final = TypeAdapter(tuple[AuditLine, ...])


@dataclass(frozen=True)
class ReceiptLog:
    """`receipt.jsonl` and `audit.json` of a run's folder."""

    folder: Path

    @property
    def path(self) -> Path:
        """The file of notes."""
        return self.folder / "receipt.jsonl"

    def note(
        self,
        step: int,
        *,
        rollouts: Path | None = None,
        weights: Sequence[Weights] = (),
        checkpoint: str | None = None,
    ) -> None:
        """Appends a line; it is lost with a warning if the disk is full."""
        digest = None if rollouts is None else hashlib.sha256(rollouts.read_bytes()).hexdigest()
        row = {"step": step, "rollouts": digest, "weights": weights, "checkpoint": checkpoint}
        line = json.dumps({name: value for name, value in row.items() if value or name == "step"})
        try:
            append_line(self.path, f"{line}\n".encode())
        except OSError as error:
            _logger.warning("the receipt of step %d could not be written: %s", step, error)

    def read(self) -> list[Note]:
        """Returns the lines that can be read; none of a run of an older version."""
        return [note for _, note in self._lines()]

    def cut_after(self, step: int) -> None:
        """Removes the lines of later steps."""
        if self.path.exists():
            kept = "".join(f"{line}\n" for line, note in self._lines() if note.step <= step)
            write_text_atomically(self.path, kept)

    def keep_audit(self, lines: Sequence[AuditLine], steps: int) -> None:
        """Writes what an audit of so many steps found."""
        content = {"steps": steps, "at": utc_now(), "lines": [asdict(line) for line in lines]}
        write_text_atomically(self.folder / _AUDIT, json.dumps(content, indent=2) + "\n")

    def last_audit(self, steps: int) -> tuple[str, tuple[AuditLine, ...]] | None:
        """Returns time and lines of the last audit; None if the run has continued since."""
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            content: Any = read_json(self.folder / _AUDIT, below=self.folder)
            if content["steps"] == steps:
                return str(content["at"]), _LINES.validate_python(content["lines"])
        return None

    def _lines(self) -> Iterator[tuple[str, Note]]:
        for line, row in read_json_lines(self.path, most_bytes=MOST_LOG_BYTES):
            with suppress(ValueError, TypeError):
                yield line, _NOTE.validate_python(row)
