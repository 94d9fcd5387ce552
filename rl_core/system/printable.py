"""Text of unknown origin, made safe to show."""

from __future__ import annotations


def printable(text: str) -> str:
    """Returns `text` with every character that could steer a terminal spelled out in ASCII.

    Those are escape sequences, line breaks, control characters above 127 too, and the characters
    that turn the reading direction around.
    """
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
        for character in text
    )
