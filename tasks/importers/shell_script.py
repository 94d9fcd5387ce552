"""Reads a shell script as a shell does, without running anything (the only tree-sitter import).

Variables, arrays and sums are expanded. What is known only when the script runs is named: commands
of a loop or function are read once, of `if` and `case` the first way is read, and what a program
prints stays as it is written.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from rl_core.system.redaction import is_secret

_LANGUAGE = Language(tree_sitter_bash.language())
_LONGEST_SUM: Final = 1_000  # characters
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_MOST_EXPANDED: Final = 10_000_000  # characters in all: 40 lines of `A=$A$A` fill any memory
_ESCAPED: Final = re.compile(r"\\(?:\n|(.))")  # a line's end is continued, so it is no character
_IN_QUOTES: Final = re.compile(r'\\(?:\n|([$`"\\]))')
_SUM: Final = re.compile(r"\$?\(\(([\w\s${:}()+*/%-]*)\)\)")
_NAME: Final = re.compile(r"\$?\{?\b([A-Za-z_]\w*)(?::?-(\d+)(?=\}))?\}?")  # in a sum: ${NAME:-8}
_REPEATED: Final = frozenset(
    {"for_statement", "c_style_for_statement", "while_statement", "function_definition"}
)
_BRANCHES: Final = frozenset({"if_statement", "case_statement"})
_OTHER_WAYS: Final = frozenset({"elif_clause", "else_clause"})
_ARITHMETIC: Final[Mapping[type, Callable[[int, int], int]]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.floordiv, ast.Mod: operator.mod},
}


@dataclass(frozen=True)
class Word:
    """One word of a command, without its quotes, its variables expanded."""

    text: str
    line: int


@dataclass(frozen=True)
class Command:
    """A simple command: its words, and the names of the commands that its output is piped into."""

    words: tuple[Word, ...]
    piped_into: tuple[str, ...]
    around: Word | None  # the first line of the loop or function that it stands in


class Script:
    """What a shell would run, in the order of the file; what the grammar cannot read is skipped.

    `variables`: the environment. ValueError if it is nested too deeply, or a variable is too long.
    """

    def __init__(self, source: str, variables: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._outer = variables or {}
        self._arrays: dict[str, list[Word]] = {}
        self._expanded = 0
        self._around: Word | None = None
        self._is_in_branch = False
        self.values: dict[str, str] = {}  # what variables hold in the end
        self.comments: set[int] = set()  # lines with a comment
        # Variables, with the first line that uses them:
        self.unset: dict[str, int] = {}  # nothing sets them, they stay as written
        self.from_outside: dict[str, int] = {}  # their value came from outside
        self.assigned: dict[str, int] = {}  # the script sets them, whatever they are outside
        self.askable: dict[str, None] = {}  # all that something outside could set
        self.branches: dict[Word, set[str]] = {}  # each `if` and `case` with what it sets
        # A byte's place must be that of its character: those beyond ASCII, of which some crash the
        # grammar's scanner, become points.
        tree = Parser(_LANGUAGE).parse(_NOT_ASCII.sub(".", source).encode())
        self.first_error = 0  # the first line that the grammar cannot read
        try:
            self.commands = tuple(self._walk(tree.root_node, ()))
        except RecursionError:
            raise ValueError("its commands are nested too deeply to be read") from None

    def _walk(self, node: Node, piped_into: tuple[str, ...]) -> Iterator[Command]:
        around = self._around
        if (node.is_error or node.is_missing) and not self.first_error:
            self.first_error = _line(node)
        match node.type:
            case "comment":
                self.comments.add(_line(node))
            case "variable_assignment":
                self._assign(node)
            case "command":
                words = tuple(word for part in node.named_children for word in self._words(part))
                if words:
                    yield Command(words, piped_into, around)
            case "pipeline":
                names = ["".join(self._text(part).split()[:1]) for part in node.named_children]
                for i, part in enumerate(node.named_children, start=1):
                    yield from self._walk(part, tuple(names[i:]))
            case kind:
                if kind in _REPEATED:
                    self._around = self._first_line(node)
                for child in self._first_way(node) if kind in _BRANCHES else node.named_children:
                    yield from self._walk(child, piped_into)
        self._around = around

    def from_outside_at(self, name: str, line: int) -> str:
        """Returns the value that something outside gives a name, else `${NAME}`; notes the use."""
        self.askable[name] = None
        if name in self._outer:
            self.from_outside.setdefault(name, line)
            return self._outer[name]
        self.unset.setdefault(name, line)
        return f"${{{name}}}"

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte]

    def _first_line(self, node: Node) -> Word:
        return Word(self._text(node).partition("\n")[0], _line(node))

    def _first_way(self, node: Node) -> Iterator[Node]:
        """Yields the first way of an `if` or `case`, and notes which variables all ways set."""
        names = {self._text(name) for name in _assigned(node)}
        if names:
            self.branches[self._first_line(node)] = names
        first = next((n for n in node.named_children if n.type == "case_item"), node)
        outer = self._is_in_branch
        self._is_in_branch = True
        yield from (n for n in first.named_children if n.type not in _OTHER_WAYS)
        self._is_in_branch = outer

    def _assign(self, node: Node) -> None:
        if (name := node.child_by_field_name("name")) is None:
            return
        key = self._text(name)
        value = node.child_by_field_name("value")
        appends = any(child.type == "+=" for child in node.children)
        if value is not None and value.type == "array":
            words = [word for child in value.named_children for word in self._words(child)]
            self._arrays[key] = [*self._arrays.get(key, []), *words] if appends else words
            return
        if self._is_in_branch and key in self._outer:
            self.values.pop(key, None)  # what is given counts, whichever way the script would take
            self.assigned.pop(key, None)
            return
        before = (self._known(key, node) or "") if appends else ""
        text = self._expand(value) if value is not None else ""
        if key not in self.values and key not in self.from_outside:
            self.assigned[key] = _line(node)
        self.values[key] = before + text

    def _words(self, node: Node) -> Iterator[Word]:
        """Yields the words that a part of a command stands for: several for an array."""
        if node.type == "variable_assignment":
            self._assign(node)
        elif (array := self._array(node)) is not None:
            yield from array
        elif node.type not in ("file_redirect", "herestring_redirect", "comment"):
            text = self._expand(node)
            # Without quotes, a variable's text is split at blanks.
            inside = node.named_children[0] if node.type == "command_name" else node
            is_split = inside.type in ("simple_expansion", "expansion")
            for part in text.split() if is_split else filter(None, [text]):
                yield Word(part, _line(node))

    def _array(self, node: Node) -> list[Word] | None:
        """Returns what `"${NAME[@]}"` or `"${NAME[0]}"` stands for, None for anything else."""
        if node.type == "string" and len(node.named_children) == 1:
            node = node.named_children[0]
        if node.type != "expansion" or _symbols(node) != ["${", "}"]:
            return None
        node = next(iter(node.named_children), node)
        if node.type != "subscript":
            return None
        words = self._arrays.get(self._text(node.named_children[0]), [])
        index = self._expand(node.named_children[-1])
        if index not in ("@", "*"):
            return words[int(index) :][:1] if index.isdecimal() and len(index) < 9 else None
        self._count(sum(len(word.text) + 1 for word in words))
        return words

    def _expand(self, node: Node) -> str:
        text = self._text(node)
        match node.type:
            case "simple_expansion":
                # Behind another one it comes with the blanks between both.
                blanks, _, name = text.partition("$")
                return blanks + self._value(node, name)
            case "command_substitution" if not text.startswith("$(("):
                return text
            # Within ${NAME:-...} the grammar takes a sum for a command.
            case "arithmetic_expansion" | "command_substitution":
                return self._sum(node)
            case "expansion":
                return self._expansion(node)
            case "raw_string":
                return text[1:-1]
            case "string" | "concatenation" | "command_name":
                return self._joined(node)
            case "string_content":
                return _IN_QUOTES.sub(r"\1", text)
        return _ESCAPED.sub(r"\1", text)

    def _joined(self, node: Node) -> str:
        """Returns the parts of a text together, with the blanks that the grammar leaves out."""
        quote = int(node.type == "string")
        end = node.start_byte + quote
        text = ""
        for child in node.named_children:
            text += self._source[end : child.start_byte] + self._expand(child)
            end = child.end_byte
        return text + self._source[end : node.end_byte - quote]

    def _expansion(self, node: Node) -> str:
        """Returns `${NAME}` or its default; any other form stays as it is written."""
        if (array := self._array(node)) is not None:
            return " ".join(word.text for word in array)
        name, *rest = node.named_children or [node]
        sign = next((s for s in _symbols(node) if s not in ("${", "}")), "")
        if name.type not in ("variable_name", "special_variable_name"):
            return self._text(node)
        key = self._text(name)
        value = self._known(key, node)
        if sign in (":-", "-", ":=", "="):
            if value or (value == "" and ":" not in sign):
                return value
            other = "".join(map(self._expand, rest))
            if "=" in sign:
                self.values[key] = other
            return other
        is_plain = not rest or sign.endswith("?")  # ${NAME:?message}
        return self._value(node, key) if value is None or is_plain else self._text(node)

    def _count(self, characters: int) -> None:
        self._expanded += characters
        if self._expanded > _MOST_EXPANDED:
            raise ValueError(f"its variables make more than {_MOST_EXPANDED:,} characters of text")

    def _known(self, name: str, node: Node) -> str | None:
        """Returns a variable's value, and notes the first use of one from outside."""
        if name in self.values and not is_secret(name, self.values[name]):
            self._count(len(self.values[name]))
            return self.values[name]
        self.askable[name] = None
        if name in self._outer:
            self.from_outside.setdefault(name, _line(node))
        return self._outer.get(name)

    def _value(self, node: Node, name: str) -> str:
        value = self._known(name, node)
        if value is not None or name in ("@", "*"):  # what the caller adds
            return value or ""
        self.unset.setdefault(name, _line(node))
        return self._text(node).lstrip()

    def _sum(self, node: Node) -> str:
        """Returns the result of `$((...))` if it is of whole numbers, else the text."""
        text = self._text(node)
        inside = _SUM.fullmatch(text)
        value_of = lambda n: self._known(n[1], node) or n[2] or self._value(node, n[1])  # noqa: E731
        numbers = _NAME.sub(value_of, inside[1]).strip() if inside else ""
        try:
            result = _result(ast.parse(numbers[:_LONGEST_SUM], mode="eval").body)
        except (ArithmeticError, MemoryError, SyntaxError, ValueError):
            return text
        return str(result) if abs(result) < 2**63 else text


def _result(tree: ast.expr) -> int:
    if isinstance(tree, ast.Constant) and type(tree.value) is int:
        return tree.value
    if not isinstance(tree, ast.BinOp) or type(tree.op) not in _ARITHMETIC:
        raise ValueError("no sum of whole numbers")
    return _ARITHMETIC[type(tree.op)](_result(tree.left), _result(tree.right))


def _assigned(node: Node) -> Iterator[Node]:
    for child in node.named_children:
        if child.type == "variable_assignment" and (name := child.child_by_field_name("name")):
            yield name
        yield from _assigned(child)


def _symbols(node: Node) -> list[str]:
    return [child.type for child in node.children if not child.is_named]


def _line(node: Node) -> int:
    return node.start_point[0] + 1
