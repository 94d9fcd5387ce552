"""Whose script or log it is, where it is none of verl's: by the table `others.yaml`."""

import re
from pathlib import Path
from typing import Final, Literal

import yaml

_TABLE: Final = yaml.safe_load(Path(__file__).with_name("others.yaml").read_text(encoding="utf-8"))
_PATTERNS: Final = {
    (whose, kind): re.compile("|".join(patterns))
    for whose, row in _TABLE.items()
    for kind, patterns in row.items()
}
_LONGEST_LINE: Final = 2_000  # characters of a line that are looked at


def other_trainer(text: str, kind: Literal["script", "log"]) -> str | None:
    """Returns the name of the trainer of which a script or log is; None if it is none known."""
    lines = [
        line[:_LONGEST_LINE] for line in text.splitlines() if not line.lstrip().startswith("#")
    ]
    for (whose, this), pattern in _PATTERNS.items():
        if this == kind and any(map(pattern.search, lines)):
            return str(whose)
    return None
