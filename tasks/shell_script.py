"""Reads a shell script as a shell does, without running anything (the only tree-sitter import).

Bash's grammar is tree-sitter's; what is done here is to expand the variables that the script sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_LANGUAGE = Language(tree_sitter_bash.language())
_BROKEN = re.compile(r"^(?!\s*#).*\\[ \t]+$")


@dataclass(frozen=True)
class Word:
    """One word of a command, without its quotes, its variables expanded."""

    text: str
    line: int
    """Counted from 1."""


@dataclass(frozen=True)
class Command:
    """A simple command: its words, and the names of the commands that its output is piped into."""

    words: tuple[Word, ...]
    piped_into: tuple[str, ...]

    @property
    def line(self) -> int:
        """Where it begins."""
        return self.words[0].line


@dataclass(frozen=True)
class Script:
    """What a shell would run, in the order of the file."""

    commands: tuple[Command, ...]
    broken_lines: tuple[int, ...]
    """Lines that end in a backslash and a blank: no continuation, though it looks like one."""
    has_pipefail: bool
    unset_variables: tuple[tuple[str, int], ...]
    """Variables that are used and not set here, and where: they stay as they are written."""


def read_script(text: str) -> Script:
    """Returns the commands of a script; what the grammar cannot read is skipped."""
    reader = _Reader(text.encode())
    broken = tuple(i for i, line in enumerate(text.split("\n"), 1) if _BROKEN.match(line))
    commands = tuple(reader.commands())
    return Script(
        commands,
        broken,
        any(_sets_pipefail(command) for command in commands),
        tuple(dict.fromkeys(reader.unset)),
    )


def _sets_pipefail(command: Command) -> bool:
    words = [word.text for word in command.words]
    return words[0] == "set" and "pipefail" in words


class _Reader:
    """Walks the tree in the order of the file, and remembers what variables hold."""

    def __init__(self, source: bytes) -> None:
        self._root = Parser(_LANGUAGE).parse(source).root_node
        self._values: dict[str, str] = {}
        self.unset: list[tuple[str, int]] = []

    def commands(self) -> Iterator[Command]:
        yield from self._walk(self._root, ())

    def _walk(self, node: Node, piped_into: tuple[str, ...]) -> Iterator[Command]:
        if node.type == "variable_assignment":
            self._assign(node)
        elif node.type == "command":
            words = tuple(word for child in node.named_children for word in self._word(child))
            if words:
                yield Command(words, piped_into)
        elif node.type == "pipeline":
            parts = node.named_children
            names = [_first_word(part) for part in parts]
            for i, part in enumerate(parts):
                yield from self._walk(part, tuple(names[i + 1 :]))
        else:
            for child in node.named_children:
                yield from self._walk(child, piped_into)

    def _assign(self, node: Node) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is not None:
            self._values[_text(name)] = self._expand(value) if value is not None else ""

    def _word(self, node: Node) -> Iterator[Word]:
        if node.type == "variable_assignment":
            self._assign(node)
        elif node.type not in ("file_redirect", "herestring_redirect", "comment"):
            text = self._expand(node)
            if text:
                yield Word(text, node.start_point[0] + 1)

    def _expand(self, node: Node) -> str:
        if node.type == "simple_expansion":
            return self._value(node, _text(node)[1:], None)
        if node.type == "expansion":
            name, *default = node.named_children
            return self._value(node, _text(name), "".join(map(self._expand, default)) or None)
        if node.type == "raw_string":
            return _text(node)[1:-1]
        if node.type in ("string", "concatenation", "command_name"):
            return "".join(self._expand(child) for child in node.named_children)
        return re.sub(r"\\(.)", r"\1", _text(node))

    def _value(self, node: Node, name: str, default: str | None) -> str:
        value = self._values.get(name, default)
        if value is not None:
            return value
        if name in ("@", "*"):
            return ""  # what the caller adds
        self.unset.append((name, node.start_point[0] + 1))
        return _text(node)


def _first_word(node: Node) -> str:
    if node.type == "command":
        name = node.child_by_field_name("name")
        return _text(name) if name is not None else ""
    return _first_word(node.named_children[0]) if node.named_children else ""


def _text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode(errors="replace")
