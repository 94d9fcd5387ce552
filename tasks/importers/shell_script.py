"""Reads a shell script as a shell does, without running anything (the only tree-sitter import).

Bash's grammar is tree-sitter's. Here variables and arrays are expanded, and the way is taken that
`if` and `case` take with their values. A program that would be asked counts as failed. Loops and
functions are not followed: their commands are read once, and know what stands around them.
"""

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import tree_sitter_bash
from tree_sitter import Language, Node, Parser

from rl_core.system.redaction import is_secret

_LANGUAGE = Language(tree_sitter_bash.language())
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_MOST_EXPANDED: Final = 10_000_000
"""Characters that variables stand for in all: 40 lines of `A=$A$A` would fill any memory."""
_SUM: Final = re.compile(r"\$?\(\(([\w\s${:}()+*/%-]*)\)\)")
_NAME: Final = re.compile(r"\$?\{?\b([A-Za-z_]\w*)(?::?-(\d+)(?=\}))?\}?")  # in a sum: ${NAME:-8}
_NOT_FOLLOWED: Final = frozenset(
    {"for_statement", "c_style_for_statement", "while_statement", "function_definition"}
)
_ARITHMETIC: Final[Mapping[type, Callable[[int, int], int]]] = {
    **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
    **{ast.Div: operator.floordiv, ast.Mod: operator.mod},
}
_COMPARED: Final[Mapping[str, Callable[[int, int], bool]]] = {
    f"-{name}": getattr(operator, name) for name in ("eq", "ne", "gt", "ge", "lt", "le")
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

    `variables`: the environment that the script would be started in. ValueError if it is nested too
    deeply, or a variable grows too long.
    """

    def __init__(self, source: str, variables: Mapping[str, str] | None = None) -> None:
        self._source = source
        self._outer = variables or {}
        self._arrays: dict[str, list[Word]] = {}
        self._expanded = 0
        self._around: Word | None = None
        self.values: dict[str, str] = {}  # what variables hold in the end
        self.comments: set[int] = set()  # lines with a comment
        # Variables, with the first line that uses them:
        self.unset: dict[str, int] = {}  # nothing sets them, they stay as written
        self.from_outside: dict[str, int] = {}  # their value came from outside
        self.assigned: dict[str, int] = {}  # the script sets them, whatever they are outside
        self.askable: dict[str, None] = {}  # all that something outside could set
        # A byte's place must be that of its character: those beyond ASCII, of which some crash the
        # grammar's scanner, become points.
        tree = Parser(_LANGUAGE).parse(_NOT_ASCII.sub(".", source).encode())
        try:
            self.commands = tuple(self._walk(tree.root_node, ()))
        except RecursionError:
            raise ValueError("its commands are nested too deeply to be read") from None

    def _walk(self, node: Node, piped_into: tuple[str, ...]) -> Iterator[Command]:
        around = self._around
        if node.type == "comment":
            self.comments.add(_line(node))
        elif node.type == "variable_assignment":
            self._assign(node)
        elif node.type == "command":
            words = tuple(word for part in node.named_children for word in self._words(part))
            if words:
                yield Command(words, piped_into, around)
        elif node.type == "pipeline":
            names = ["".join(self._text(part).split()[:1]) for part in node.named_children]
            for i, part in enumerate(node.named_children):
                yield from self._walk(part, tuple(names[i + 1 :]))
        else:
            if node.type in _NOT_FOLLOWED:
                self._around = Word(self._text(node).partition("\n")[0], _line(node))
            for child in self._taken(node):
                yield from self._walk(child, piped_into)
        self._around = around

    def _text(self, node: Node) -> str:
        return self._source[node.start_byte : node.end_byte]

    def _taken(self, node: Node) -> Sequence[Node]:
        if node.type == "if_statement":
            others = [n for n in node.named_children if n.type in ("elif_clause", "else_clause")]
            for clause in (node, *others):
                parts = [part for part in clause.named_children if part not in others]
                if clause.type == "else_clause":
                    return parts
                if not parts or self._holds(parts[0]):
                    return parts[1:]
            return ()
        if node.type != "case_statement":
            return node.named_children
        subject = node.child_by_field_name("value")
        value = self._expand(subject) if subject is not None else ""
        for item in node.named_children:
            patterns = map(self._expand, item.children_by_field_name("value"))
            # Of a value that only a program would tell, the first way is taken for the usual one.
            if item.type == "case_item" and (
                "$" in value or any(fnmatchcase(value, pattern) for pattern in patterns)
            ):
                return item.named_children
        return ()

    def _holds(self, node: Node) -> bool:
        """Says whether a condition holds; one that would ask a program or the disk does not."""
        children, symbols = node.named_children, _symbols(node)
        if not children:
            return False
        if node.type == "negated_command" or (node.type == "unary_expression" and symbols == ["!"]):
            return not self._holds(children[-1])
        if node.type in ("test_command", "parenthesized_expression"):
            return self._holds(children[-1])
        if node.type == "unary_expression" and len(children) == 2:
            text = self._expand(children[1])
            return {"-z": not text, "-n": bool(text)}.get(self._text(children[0]), False)
        if node.type not in ("list", "binary_expression") or len(children) < 2:
            return False
        if node.type == "list" or "&&" in symbols or "||" in symbols:
            combined = all if "&&" in symbols else any
            return combined(self._holds(child) for child in children)
        sign = symbols[0] if symbols else self._text(children[1])
        left, right = self._expand(children[0]), self._expand(children[-1])
        if sign in ("=", "==", "!="):
            return fnmatchcase(left, right) == (sign != "!=")
        is_number = all(re.fullmatch(r"-?[0-9]{1,18}", text) for text in (left, right))
        return sign in _COMPARED and is_number and _COMPARED[sign](int(left), int(right))

    def _assign(self, node: Node) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None:
            return
        key, appends = self._text(name), any(child.type == "+=" for child in node.children)
        if value is not None and value.type == "array":
            words = [word for child in value.named_children for word in self._words(child)]
            self._arrays[key] = [*self._arrays.get(key, []), *words] if appends else words
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
            # Without quotes, what a variable holds is as many words as it looks.
            is_split = node.type in ("simple_expansion", "expansion")
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
        children, text = node.named_children, self._text(node)
        if node.type == "simple_expansion":
            # Behind another one it comes with the blanks between both.
            blanks, _, name = text.partition("$")
            return blanks + self._value(node, name)
        # Within ${NAME:-...} the grammar takes a sum for a command.
        is_command = node.type == "command_substitution"
        if node.type == "arithmetic_expansion" or (is_command and text.startswith("$((")):
            return self._sum(node)
        if node.type == "expansion":
            return self._expansion(node)
        if is_command:
            printed = self._printed(children[0]) if children else None
            return text if printed is None else printed
        if node.type == "raw_string":
            return text[1:-1]
        if node.type in ("string", "concatenation", "command_name"):
            return self._joined(node)
        return re.sub(r"\\(.)", r"\1", text)

    def _joined(self, node: Node) -> str:
        """Returns the parts of a text together, and the blanks that the grammar has no part for."""
        quote = int(node.type == "string")
        text, end = "", node.start_byte + quote
        for child in node.named_children:
            text += self._source[end : child.start_byte] + self._expand(child)
            end = child.end_byte
        return text + self._source[end : node.end_byte - quote]

    def _expansion(self, node: Node) -> str:
        """Returns `${NAME}`, or its default, alternative or one end of it."""
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
        if sign in (":+", "+"):
            return "".join(map(self._expand, rest)) if value else ""
        if value is None or sign not in ("%", "##"):
            return self._value(node, key)
        pattern = "".join(map(self._expand, rest))
        if sign == "##":  # of ${NAME##*/}, which scripts take from a path
            return value.rpartition(pattern[1:] or "\0")[2] if pattern[:1] == "*" else value
        return value.removesuffix(pattern)  # ${NAME%.parquet}

    def _count(self, characters: int) -> None:
        self._expanded += characters
        if self._expanded > _MOST_EXPANDED:
            raise ValueError(f"its variables make more than {_MOST_EXPANDED:,} characters of text")

    def _known(self, name: str, node: Node) -> str | None:
        """Returns a variable's value, and remembers where one from outside is used first."""
        if name in self.values and not is_secret(name, self.values[name]):
            self._count(len(self.values[name]))
            return self.values[name]
        self.askable[name] = None
        if name in self._outer:
            self.from_outside.setdefault(name, _line(node))
        return self._outer.get(name)

    def _value(self, node: Node, name: str) -> str:
        value = self._known(name, node)
        if value is not None:
            return value
        if name in ("@", "*"):
            return ""  # what the caller adds
        self.unset.setdefault(name, _line(node))
        return self._text(node).lstrip()

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

    def _sum(self, node: Node) -> str:
        """Returns what `$((...))` makes of whole numbers; anything else stays as written."""
        text = self._text(node)
        inside = _SUM.fullmatch(text)
        value_of = lambda n: self._known(n[1], node) or n[2] or self._value(node, n[1])  # noqa: E731
        numbers = _NAME.sub(value_of, inside[1]) if inside else ""
        try:
            is_sum = re.fullmatch(r"[\d\s()+*/%-]{1,1000}", numbers)
            result = _result(ast.parse(numbers.strip(), mode="eval").body) if is_sum else None
        except (SyntaxError, MemoryError):
            return text
        return text if result is None else str(result)


def _result(tree: ast.expr) -> int | None:
    """Returns what a sum makes, as bash keeps it: in 64 bits."""
    if isinstance(tree, ast.Constant):
        value: Any = tree.value
        return value if type(value) is int and value < 10**18 else None
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        inner = _result(tree.operand)
        return None if inner is None else -inner
    if not isinstance(tree, ast.BinOp) or type(tree.op) not in _ARITHMETIC:
        return None
    left, right = _result(tree.left), _result(tree.right)
    if left is None or right is None or (not right and isinstance(tree.op, ast.Div | ast.Mod)):
        return None
    return (_ARITHMETIC[type(tree.op)](left, right) + 2**63) % 2**64 - 2**63


def _symbols(node: Node) -> list[str]:
    return [child.type for child in node.children if not child.is_named]


def _line(node: Node) -> int:
    return node.start_point[0] + 1
