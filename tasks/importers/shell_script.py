"""Reads a shell script as a shell does, without running anything (the only tree-sitter import).

Bash's grammar is tree-sitter's; what is done here is to expand variables and arrays, and to go the
way that `if` and `case` go with their values. A program that would be asked counts as failed.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

_LANGUAGE = Language(tree_sitter_bash.language())
_BROKEN = re.compile(r"^(?!\s*#).*\\[ \t]+$")
_ARITHMETIC: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
    "%": operator.mod,
}
_AROUND_NUMBERS: Final = (
    *("program", "variable_assignment", "arithmetic_expansion", "parenthesized_expression"),
)
_COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


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
    """Variables that are used and set nowhere, each with the first line that uses it: they stay as
    they are written."""
    outer_variables: tuple[tuple[str, int], ...]
    """Variables whose value came from outside, likewise."""
    askable: tuple[str, ...]
    """All variables that something outside could set."""
    assigned: Mapping[str, int]
    """Variables that the script sets without regard to what they are outside, and where."""


def read_script(text: str, variables: Mapping[str, str] | None = None) -> Script:
    """Returns the commands of a script; what the grammar cannot read is skipped.

    Args:
        text: the script.
        variables: the environment that it would be started in.
    """
    reader = _Reader(text.encode(), variables or {})
    broken = tuple(i for i, line in enumerate(text.split("\n"), 1) if _BROKEN.match(line))
    commands = tuple(reader.commands())
    return Script(
        commands,
        broken,
        any(_sets_pipefail(command) for command in commands),
        tuple(reader.unset.items()),
        tuple(reader.from_outside.items()),
        tuple(reader.askable),
        reader.assigned,
    )


def _sets_pipefail(command: Command) -> bool:
    words = [word.text for word in command.words]
    return words[0] == "set" and "pipefail" in words


class _Reader:
    """Walks the tree in the order of the file, and remembers what variables hold."""

    def __init__(self, source: bytes, variables: Mapping[str, str]) -> None:
        self._root = Parser(_LANGUAGE).parse(source).root_node
        self._outer = variables
        self._values: dict[str, str] = {}
        self._arrays: dict[str, list[Word]] = {}
        self.unset: dict[str, int] = {}
        self.from_outside: dict[str, int] = {}
        self.askable: dict[str, None] = {}
        self.assigned: dict[str, int] = {}

    def commands(self) -> Iterator[Command]:
        yield from self._walk(self._root, ())

    def _walk(self, node: Node, piped_into: tuple[str, ...]) -> Iterator[Command]:
        if node.type == "variable_assignment":
            self._assign(node)
        elif node.type == "command":
            words = tuple(word for child in node.named_children for word in self._words(child))
            if words:
                yield Command(words, piped_into)
        elif node.type == "pipeline":
            parts = node.named_children
            names = [_first_word(part) for part in parts]
            for i, part in enumerate(parts):
                yield from self._walk(part, tuple(names[i + 1 :]))
        else:
            for child in self._taken(node):
                yield from self._walk(child, piped_into)

    def _taken(self, node: Node) -> Sequence[Node]:
        """Returns the parts of a statement that are run."""
        if node.type == "if_statement":
            return self._branch(node)
        if node.type == "case_statement":
            subject = node.child_by_field_name("value")
            value = self._expand(subject) if subject is not None else ""
            items = [item for item in node.named_children if item.type == "case_item"]
            # Of a value that only a program would tell, the first way is taken for the usual one.
            return next(
                (
                    item.named_children
                    for item in items
                    if "$" in value or any(self._fits(value, p) for p in _patterns(item))
                ),
                (),
            )
        return node.named_children

    def _branch(self, node: Node) -> Sequence[Node]:
        """Returns the statements of the first way whose condition holds."""
        condition = node.child_by_field_name("condition")
        others = ("elif_clause", "else_clause")
        if condition is None or self._holds(condition):
            return [n for n in node.named_children if n != condition and n.type not in others]
        for other in node.named_children:
            if other.type == "else_clause":
                return other.named_children
            if other.type == "elif_clause" and self._holds(other.named_children[0]):
                return other.named_children[1:]
        return ()

    def _fits(self, value: str, pattern: Node) -> bool:
        return fnmatchcase(value, self._expand(pattern))

    def _holds(self, node: Node) -> bool:
        """Says whether a condition holds; one that would ask a program or the disk does not."""
        children = node.named_children
        symbols = _symbols(node)
        if node.type == "list":
            first, last = children[0], children[-1]
            if "&&" in symbols:
                return self._holds(first) and self._holds(last)
            return self._holds(first) or self._holds(last)
        if node.type in ("test_command", "parenthesized_expression", "negated_command"):
            held = bool(children) and self._holds(children[-1])
            return not held if node.type == "negated_command" else held
        if node.type == "unary_expression" and len(children) == 2:
            text = self._expand(children[1])
            return {"-z": not text, "-n": bool(text)}.get(_text(children[0]), False)
        if node.type == "unary_expression" and symbols == ["!"]:
            return not self._holds(children[0])
        if node.type != "binary_expression" or len(children) < 2:
            return False
        if "&&" in symbols or "||" in symbols:
            combined = all if "&&" in symbols else any
            return combined(self._holds(child) for child in children)
        sign = symbols[0] if symbols else _text(children[1])
        left, right = self._expand(children[0]), self._expand(children[-1])
        if sign in ("=", "==", "!="):
            return fnmatchcase(left, right) == (sign != "!=")
        if sign in _COMPARED and _is_whole(left) and _is_whole(right):
            return _COMPARED[sign](int(left), int(right))
        return False

    def _assign(self, node: Node) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return
        key, appends = _text(name), any(child.type == "+=" for child in node.children)
        if value is not None and value.type == "array":
            words = [word for child in value.named_children for word in self._words(child)]
            self._arrays[key] = [*self._arrays.get(key, []), *words] if appends else words
            return
        before = (self._known(key, node) or "") if appends else ""
        text = self._expand(value) if value is not None else ""
        if key not in self._values and key not in self.from_outside:
            self.assigned[key] = node.start_point[0] + 1
        self._values[key] = before + text

    def _words(self, node: Node) -> Iterator[Word]:
        """Yields the words that a part of a command stands for: several for an array."""
        if node.type == "variable_assignment":
            self._assign(node)
        elif (array := self._array(node)) is not None:
            yield from array
        elif node.type not in ("file_redirect", "herestring_redirect", "comment"):
            text = self._expand(node)
            if text:
                yield Word(text, node.start_point[0] + 1)

    def _array(self, node: Node) -> list[Word] | None:
        """Returns what `"${NAME[@]}"` stands for, None for anything else."""
        if node.type == "string" and len(node.named_children) == 1:
            node = node.named_children[0]
        if node.type != "expansion" or _text(node).startswith("${#"):
            return None
        node = node.named_children[0]
        if node.type != "subscript" or _text(node.named_children[-1]) not in ("@", "*"):
            return None
        return self._arrays.get(_text(node.named_children[0]), [])

    def _expand(self, node: Node) -> str:
        children = node.named_children
        if node.type == "simple_expansion":
            # Behind another one it comes with the blanks between both.
            blanks, _, name = _text(node).partition("$")
            return blanks + self._value(node, name)
        if node.type == "expansion":
            return self._expansion(node)
        if node.type == "arithmetic_expansion" or _text(node).startswith("$(("):
            # Within ${NAME:-...} the grammar takes it for a command: read it again, alone.
            alone = Parser(_LANGUAGE).parse((node.text or b"").replace(b"$((", b"A=$((", 1))
            number = self._number(alone.root_node)
            return _text(node) if number is None else str(number)
        if node.type == "command_substitution":
            printed = self._printed(children[0]) if children else None
            return _text(node) if printed is None else printed
        if node.type == "raw_string":
            return _text(node)[1:-1]
        if node.type in ("string", "concatenation", "command_name"):
            return self._joined(node)
        return re.sub(r"\\(.)", r"\1", _text(node))

    def _joined(self, node: Node) -> str:
        """Returns the parts of a text together, and the blanks that the grammar has no part for."""
        source, quote = node.text or b"", int(node.type == "string")
        text, end = "", quote
        for child in node.named_children:
            between = source[end : child.start_byte - node.start_byte]
            text += between.decode(errors="replace") + self._expand(child)
            end = child.end_byte - node.start_byte
        return text + source[end : len(source) - quote].decode(errors="replace")

    def _expansion(self, node: Node) -> str:
        """Returns `${NAME}`, or its default, alternative or one end of it."""
        name, *rest = node.named_children or [node]
        sign = next((s for s in _symbols(node) if s not in ("${", "}")), "")
        if name.type not in ("variable_name", "special_variable_name"):
            return _text(node)
        key = _text(name)
        value = self._known(key, node)
        if sign in (":-", "-", ":=", "="):
            if value or (value == "" and ":" not in sign):
                return value
            other = "".join(map(self._expand, rest))
            if "=" in sign:
                self._values[key] = other
            return other
        if sign in (":+", "+"):
            return "".join(map(self._expand, rest)) if value else ""
        if value is not None and sign in ("%", "##"):
            return _one_end(value, sign, "".join(map(self._expand, rest)))
        return self._value(node, key)

    def _known(self, name: str, node: Node) -> str | None:
        """Returns a variable's value, and remembers where one from outside is used first."""
        if name in self._values:
            return self._values[name]
        self.askable[name] = None
        if name in self._outer:
            self.from_outside.setdefault(name, node.start_point[0] + 1)
        return self._outer.get(name)

    def _value(self, node: Node, name: str) -> str:
        value = self._known(name, node)
        if value is not None:
            return value
        if name in ("@", "*"):
            return ""  # what the caller adds
        self.unset.setdefault(name, node.start_point[0] + 1)
        return _text(node).lstrip()

    def _printed(self, node: Node) -> str | None:
        """Returns what `$(...)` prints if no program but echo is asked; a program fails."""
        if node.type == "command":
            words = [word.text for child in node.named_children for word in self._words(child)]
            return " ".join(words[1:]) if words[:1] == ["echo"] else None
        if node.type != "list":
            return None
        first, last = node.named_children[0], node.named_children[-1]
        printed = self._printed(first)
        return self._printed(last) if (printed is not None) == ("&&" in _symbols(node)) else printed

    def _number(self, node: Node) -> int | None:
        """Returns what a whole-number expression makes."""
        children = node.named_children
        if node.type in _AROUND_NUMBERS:
            return self._number(children[-1]) if children else None
        if node.type == "binary_expression" and len(children) == 2:
            left, right = self._number(children[0]), self._number(children[1])
            sign = next(iter(_symbols(node)), "")
            if left is None or right is None or sign not in _ARITHMETIC:
                return None
            return _ARITHMETIC[sign](left, right) if right or sign in "+-*" else None
        name = node.type == "variable_name"
        text = self._value(node, _text(node)) if name else self._expand(node)
        return int(text) if _is_whole(text) else None


def _one_end(value: str, sign: str, pattern: str) -> str:
    """Returns `${NAME##*/}` and `${NAME%.parquet}`: what scripts take from a path."""
    if sign == "##":
        return value.rpartition(pattern[1:])[2] if pattern[1:] and pattern[0] == "*" else value
    return value.removesuffix(pattern)


def _symbols(node: Node) -> list[str]:
    return [child.type for child in node.children if not child.is_named]


def _patterns(item: Node) -> Iterator[Node]:
    """Yields the patterns of one way of a case: what stands before its parenthesis."""
    for child in item.children:
        if child.type == ")":
            return
        if child.is_named:
            yield child


def _is_whole(text: str) -> bool:
    return re.fullmatch(r"-?\d{1,18}", text) is not None


def _first_word(node: Node) -> str:
    if node.type == "command":
        name = node.child_by_field_name("name")
        return _text(name) if name is not None else ""
    return _first_word(node.named_children[0]) if node.named_children else ""


def _text(node: Node) -> str:
    assert node.text is not None
    return node.text.decode(errors="replace")
