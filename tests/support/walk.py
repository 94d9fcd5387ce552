"""Follows a parameter through the calls that can be seen in the source: where its value stays.

Seen are calls by name: of a function, or of a method of something whose class is annotated or clear
from how it is made. Followed are the value and the records (the product's classes) that are made of
it; tensors and numbers taken from these are not.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Kinds = set[str]
"""The product's classes that a value is of, or holds: "module:Class"."""


class Walk:
    """`stays` names the functions, "module:Class.method", that get what the parameter brings."""

    def __init__(self, root: Path, package: str, start: str, parameter: str) -> None:
        self._names: dict[str, dict[str, str]] = {}
        self._defined: dict[str, Any] = {}
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            module = ".".join(part for part in parts if part != "__init__")
            names = self._names[module] = {}
            tree = ast.parse(path.read_text())
            for node in ast.walk(tree):
                for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                    names[alias.asname or alias.name] = f"{node.module}:{alias.name}"
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    names[node.name] = f"{module}:{node.name}"
                    self._defined[names[node.name]] = node
                for member in node.body if isinstance(node, ast.ClassDef) else ():
                    if isinstance(member, ast.FunctionDef):
                        self._defined[f"{module}:{node.name}.{member.name}"] = member
        self.stays: dict[str, set[str]] = {}
        self._enter(start, {parameter})

    def _is_class(self, name: str) -> bool:
        return isinstance(self._defined.get(name), ast.ClassDef)

    def _annotated(self, owner: str, annotation: ast.AST | None) -> Kinds:
        names = self._names[owner.partition(":")[0]]
        words = {names.get(node.id, "") for node in _inside(annotation, ast.Name)}
        return set(filter(self._is_class, words))

    def _parameters(self, name: str) -> dict[str, Kinds]:
        """Returns a function's parameters, in order, each with its kinds."""
        arguments = self._defined[name].args
        each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        kinds = {one.arg: self._annotated(name, one.annotation) for one in each}
        return kinds | ({"self": {name.rpartition(".")[0]}} if "self" in kinds else {})

    def _attribute(self, owner: str, name: str) -> Kinds:
        """Returns the kinds of an attribute, as it is annotated or as `__init__` makes it."""
        for node in _inside(self._defined[owner], ast.AnnAssign):
            if ast.unparse(node.target).removeprefix("self.") == name:
                return self._annotated(owner, node.annotation)
        start = f"{owner}.__init__"
        for target, value in _assignments(self._defined.get(start)):
            if isinstance(target, ast.Attribute) and target.attr == name:
                return self._kinds(owner, value, self._parameters(start))
        return set()

    def _kinds(self, owner: str, node: ast.AST, local: dict[str, Kinds]) -> Kinds:
        """Returns the kinds of an expression in the module of `owner`."""
        if isinstance(node, ast.Name):
            return local.get(node.id, set())
        if isinstance(node, ast.Attribute):
            holders = self._kinds(owner, node.value, local)
            return set().union(*(self._attribute(holder, node.attr) for holder in holders))
        if isinstance(node, ast.Call):
            called = self._called(owner, node.func, local)
            made = {name for name in called if self._is_class(name)}
            returned = (self._annotated(x, self._defined[x].returns) for x in called - made)
            return made.union(*returned)
        parts = ast.iter_child_nodes(node)
        return set().union(*(self._kinds(owner, part, local) for part in parts))

    def _called(self, owner: str, node: ast.AST, local: dict[str, Kinds]) -> set[str]:
        """Returns the functions and classes that the left side of a call may name."""
        names = set[str]()
        if isinstance(node, ast.Name):
            names = {self._names[owner.partition(":")[0]].get(node.id, "")}
        elif isinstance(node, ast.Attribute):
            names = {f"{kind}.{node.attr}" for kind in self._kinds(owner, node.value, local)}
        return names & self._defined.keys()

    def _enter(self, name: str, brought: set[str]) -> None:
        """Notes a stay, and follows the parameters `brought` through the function."""
        carried = self.stays.setdefault(name, set())
        if brought <= carried:
            return
        carried |= brought
        local = self._parameters(name)
        following = set(carried)
        for target, value in [*_assignments(self._defined[name])] * 2:  # inner blocks come later
            kinds = self._kinds(name, value, local)
            words = {part.id for part in _inside(target, ast.Name)}
            local |= {word: local.get(word, set()) | kinds for word in words}
            following |= words if self._holds(value, name, local, following) else set()
        for call in _inside(self._defined[name], ast.Call):
            for called in self._called(name, call.func, local):
                given = {} if self._is_class(called) else self._given(called, call)
                held = {x for x in given if self._holds(given[x], name, local, following)}
                if held:
                    self._enter(called, held)

    def _given(self, called: str, call: ast.Call) -> dict[str, ast.AST]:
        names = self._parameters(called)
        values = [call.func.value, *call.args] if "self" in names else call.args
        by_name = {word.arg: word.value for word in call.keywords}
        return dict(zip(names, values, strict=False)) | by_name

    def _holds(self, node: ast.AST, owner: str, local: dict[str, Kinds], words: set[str]) -> bool:
        """Whether an expression is one of the `words`, a container of one, or a record of it."""
        if isinstance(node, ast.Name):
            return node.id in words
        made = isinstance(node, ast.Attribute | ast.Call)
        if made and not self._kinds(owner, node, local):
            return False
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts.append(node.func.value)
        return any(self._holds(part, owner, local, words) for part in parts)


def _inside(node: ast.AST | None, kind: type) -> Iterator[Any]:
    return (part for part in ast.walk(node or ast.Pass()) if isinstance(part, kind))


def _assignments(function: ast.AST | None) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yields targets and values, outer blocks first; a loop gives to its variable."""
    for node in _inside(function, ast.Assign | ast.For | ast.comprehension):
        for target in node.targets if isinstance(node, ast.Assign) else (node.target,):
            value = node.value if isinstance(node, ast.Assign) else node.iter
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                yield from zip(target.elts, value.elts, strict=False)
            else:
                yield target, value
