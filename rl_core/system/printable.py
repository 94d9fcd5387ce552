"""Text of unknown origin, made safe to show."""

from __future__ import annotations

from typing import Final

LINES: Final = "\n\t"
"""What stays in a text of several lines."""


def printable(text: str, *, keep: str = "") -> str:
    r"""Returns `text` with every character that could steer a terminal spelled out in ASCII.

    Those are escape sequences, line breaks, control characters above 127 too, and the characters
    that turn the reading direction around. Those in `keep` stay: `LINES` for a text of several.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
