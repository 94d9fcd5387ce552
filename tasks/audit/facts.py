"""What an audit reads of a run once: record, settings of each step, notes, and its data set."""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Final

from rl_core.config.run import RunConfig
from rl_core.data.dataset import problems_in, read_verified
from rl_core.data.readers import SPLITS
from rl_core.resources.oom_recovery import with_changes
from rl_core.runs.receipt import AuditLine, Note
from rl_core.runs.run_folder import Attempt, RunFolder
from rl_core.runs.settings_file import parse_settings
from rl_core.system.plain_files import MOST_YAML_BYTES, open_plain, read_plain
from rl_core.system.words import in_one_line
from rl_core.types import Problem

OLDER: Final = "an older version wrote no receipt.jsonl"
_SHOWN: Final = 3


def line(
    subject: str, compared: str, wrong: Sequence[str] = (), unknown: str | None = None
) -> AuditLine:
    """Returns what a check came to: what is `wrong` first, then what is `unknown`."""
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        return AuditLine(subject, "FAILS", f"{'; '.join(wrong[:_SHOWN])}{more}")
    if unknown is not None:
        return AuditLine(subject, "unknown", unknown)
    return AuditLine(subject, "holds", compared)


def ranges(numbers: Iterable[int]) -> str:
    """Returns numbers as a text: `1 to 4, 7`."""
    # In an unbroken row, numbers grow as their places do.
    placed = groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    rows = [[number for _, number in pairs] for _, pairs in placed]
    texts = [str(row[0]) if len(row) == 1 else f"{row[0]} to {row[-1]}" for row in rows]
    return ", ".join([*texts[:_SHOWN], *(["..."] if len(texts) > _SHOWN else [])])


@dataclass(frozen=True)
class Facts:
    """A run under audit. `rewards`: functions that the command names, so they may be called."""

    run: RunFolder
    rewards: Collection[str] = ()

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """All starts of the run, as its record has them."""
        return self.run.read().attempts

    @cached_property
    def notes(self) -> list[Note]:
        """What was noted for the receipt while it trained."""
        return self.run.receipt.read()

    @cached_property
    def settings(self) -> list[RunConfig | str]:
        """The settings of each attempt, or why they cannot be read."""
        number = max(1, len(self.attempts))
        settings: list[RunConfig | str] = [self._read("config.yaml")] * number
        for later in range(number, 1, -1):
            kept = f"config_before_attempt_{later}.yaml"
            if (self.run.path / kept).exists():
                settings[: later - 1] = [self._read(kept)] * (later - 1)
        changes = [attempt.changes for attempt in self.attempts]
        return [
            one if isinstance(one, str) else with_changes(one, changes[: i + 1])
            for i, one in enumerate(settings)
        ]

    def _read(self, name: str) -> RunConfig | str:
        folder = self.run.path
        try:
            content = read_plain(folder / name, below=folder, most_bytes=MOST_YAML_BYTES)
            return RunConfig.model_validate(parse_settings(content.decode(errors="replace")))
        except (OSError, ValueError, TypeError) as error:
            problem = in_one_line(error)
            older = "by an older version, or are damaged" if "extra" in problem else "as they are"
            return f"the settings in {name} cannot be read {older} ({problem[:160]})"

    def of_step(self, step: int) -> RunConfig | str:
        """Returns the settings by which a step was made."""
        begun = [i for i, attempt in enumerate(self.attempts) if attempt.from_step < step]
        return self.settings[begun[-1] if begun else 0]

    @cached_property
    def unreadable(self) -> str | None:
        """Why the settings of an attempt cannot be read; None if all can."""
        return next((one for one in self.settings if isinstance(one, str)), None)

    @cached_property
    def data(self) -> Path | None:
        """The folder of the data set, as the record has it; None if it has none."""
        return None if (folder := self.run.read().data) is None else Path(folder)

    @cached_property
    def problems(self) -> dict[str, list[Problem]] | str:
        """The problems of each split, verified; or why they cannot be read."""
        if self.data is None:
            return "the run's record names no data set"
        files = {split: self.data / f"{split}.parquet" for split in SPLITS}
        try:
            return {name: problems_in(read_verified(file), file) for name, file in files.items()}
        except (OSError, ValueError) as error:
            return in_one_line(error)


def file_digest(path: Path, run: Path) -> str:
    """Returns the sha256 of a file of a run."""
    with open_plain(path, below=run) as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
