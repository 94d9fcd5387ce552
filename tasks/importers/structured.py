"""Reads verl's settings where they stand in YAML or in Python instead of a shell's command.

A recipe (nested sections), `.hydra/overrides.yaml` (a list of KEY=VALUE), and a program that holds
a command as a list of strings, as one string or as a dict. Nothing is run.
"""

import ast
import json
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

import yaml

from tasks.importers.shell_script import Word

_MOST_SETTINGS: Final = 5_000  # aliases of YAML make any number of a few lines
_LONGEST: Final = 500_000  # characters
_BEGINS: Final = re.compile(  # of a file with sections, or with overrides, after comments
    r"(?:\s*(?:#.*|---.*)?\n)*+(?:[A-Za-z_][\w.]*:(?:\s|$)|- *['\"]?[~+]{0,2}[\w./@]+=)"
)
_SECTIONS: Final = {"actor_rollout_ref", "algorithm", "critic", "data", "trainer"}
_BASE: Final = re.compile(r"/?ppo_\w*trainer(\.yaml)?")


def words_of_yaml(text: str) -> list[Word]:
    """Returns the settings of a recipe, or of a list of overrides, as words; none if it is neither.

    `--config-name` has what its `defaults` name beside verl's own, or that they do not name those.
    """
    if len(text) > _LONGEST or not _BEGINS.match(text):
        return []
    try:
        node = yaml.compose(text, yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
    words: list[Word] = []
    bases: list[str] = []
    if isinstance(node, yaml.SequenceNode):
        words = [Word(_flow(item), _line(item)) for item in node.value]
    elif isinstance(node, yaml.MappingNode) and _SECTIONS & {key.value for key, _ in node.value}:
        sections = {str(key.value): value for key, value in node.value}
        defaults = sections.pop("defaults", None)
        if isinstance(defaults, yaml.SequenceNode):
            bases = [name for item in defaults.value if (name := _flow(item)) != "_self_"]
        leaves = (word for key, value in sections.items() for word in _leaves(key, value))
        words = [*islice(leaves, _MOST_SETTINGS + 1)]
    if len(words) > _MOST_SETTINGS:
        raise ValueError(f"it holds more than {_MOST_SETTINGS:,} settings")
    others = [name or "?" for name in bases or ["that it belongs to"] if not _BASE.fullmatch(name)]
    return words and [*(Word(f"--config-name={name}", words[0].line) for name in others), *words]


def _leaves(key: str, node: yaml.Node) -> Iterator[Word]:
    if isinstance(node, yaml.MappingNode) and node.value:
        for name, value in node.value:
            yield from _leaves(f"{key}.{name.value}", value)
    else:
        yield Word(f"{key}={_flow(node)}", _line(node))


def _flow(node: yaml.Node) -> str:
    """Returns a value in one line, as it would stand after KEY=; of a section, its names."""
    match node:
        case yaml.ScalarNode():
            return str(node.value)
        case yaml.MappingNode():
            return "{" + ", ".join(str(name.value) for name, _ in node.value) + "}"
    plain = [part.value for part in node.value if isinstance(part, yaml.ScalarNode)]
    return json.dumps(plain, ensure_ascii=False)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def strings_of_python(text: str, value_of: Callable[[str, int], str]) -> list[Word]:
    """Returns the strings of a Python program in their order; none if it is no program.

    An entry of a dict becomes KEY=VALUE. `value_of` knows the variables that the program does not
    set to a constant, by name and line.
    """
    try:
        nodes = [*ast.walk(ast.parse(text))] if len(text) <= _LONGEST else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    strings = _Strings(nodes, value_of)
    words = sorted(word for node in nodes for word in strings.words(node))
    return [Word(text, line) for line, _, text in words]


class _Strings:
    """The texts of expressions, as far as they are constants or known names."""

    def __init__(self, nodes: list[ast.AST], value_of: Callable[[str, int], str]) -> None:
        self._value_of = value_of
        self._constants = {
            name.id: str(node.value.value)
            for node in nodes
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for name in node.targets
            if isinstance(name, ast.Name)
        }
        self._parts: set[int] = set()  # docstrings, and what belongs to a longer string
        for node in nodes:
            if isinstance(node, ast.Expr):
                self._parts.add(id(node.value))
            elif isinstance(node, ast.JoinedStr):
                self._parts.update(map(id, node.values))

    def words(self, node: ast.AST) -> Iterator[tuple[int, int, str]]:
        """Yields the strings of one expression, with line and column."""
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and (text := self._text(value)) is not None:
                    yield key.lineno, key.col_offset, str(key.value) + f"={text}"
        elif isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in self._parts:
            yield node.lineno, node.col_offset, self._text(node) or ""

    def _text(self, node: ast.AST) -> str | None:
        match node:
            case ast.Constant(value=value):
                return str(value)
            case ast.Name(id=name, lineno=line):
                known = self._constants.get(name)
                return self._value_of(name, line) if known is None else known
            case ast.FormattedValue(value=value):
                return self._text(value)
            case ast.JoinedStr(values=values):
                return "".join(self._text(value) or "${...}" for value in values)
        return None
