"""Numbers and texts as all of the program shows them: bytes, durations, counts, texts, tables."""

import difflib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

GIB: Final = 2**30
"""Bytes in the unit in which memory is counted."""
LINES: Final = "\n\t"
"""What `printable` keeps in a text of several lines."""


def disk_size(num_bytes: float) -> str:
    """Returns bytes as people compare them with a disk's: `4.5 GB`, of 10^9 bytes, or `60 kB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= 0.9995 * unit:
            return f"{num_bytes / unit:.3g} {name}"
    return f"{max(num_bytes, 0):.0f} B"


def duration(seconds: float) -> str:
    """Returns about how long something takes: `40 s`, `12 min`, `3.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def exact_duration(seconds: float) -> str:
    """Returns how long something took: `8.3 s`, `5 min 00 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def counted(number: float, noun: str) -> str:
    """Returns `1 row`, `2 rows`, `0.5 rows`."""
    return f"{number:.12g} {noun}{'' if number == 1 else 's'}"


def in_one_line(text: object) -> str:
    """Returns a text, or what an error says, in one line, with single spaces."""
    return " ".join(str(text).split())


def cut(text: str, longest: int) -> str:
    """Returns at most so many characters of a text; if it is longer, the last of them is `…`."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def as_path(text: str) -> Path:
    """Returns the path that a text names: `~` is a home, but `~NAME` stays if no user has it."""
    with suppress(RuntimeError):
        return Path(text).expanduser()
    return Path(text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean X?` if one of the names is near, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""


def without_middle(text: str, longest: int, gap: str = " [...] ") -> str:
    """Returns a text; of one that is longer, the beginning and the end with a gap between."""
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}{gap}{text[-half:]}"


def markdown_table(
    heads: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Collection[int] = ()
) -> str:
    """Returns a table in markdown; columns with these `numbers` are aligned to the right."""
    ends = ["---:" if i in numbers else "---" for i in range(len(heads))]
    lines = [f"| {' | '.join(map(str, row))} |" for row in (heads, *rows)]
    return "\n".join([lines[0], f"|{'|'.join(ends)}|", *lines[1:]])


def printable(text: str, *, keep: str = "") -> str:
    r"""Returns `text` with every character that could steer a terminal spelled out in ASCII.

    Those are escape sequences, line breaks, control characters (above 127 too), and the characters
    that change the reading direction. Those in `keep` stay: `LINES` for a text of several lines.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
