"""Follows a parameter through the calls that can be seen in the source: where its value stays.

Seen are calls by name: of a function, a class, or a method of something whose class is annotated or
clear from how it is made. Followed are the value and the records (the product's classes) that are
made of it; tensors and numbers taken from these are not.
"""

import ast
from collections.abc import Iterator, Mapping
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
            self._index(".".join(part for part in parts if part != "__init__"), path)
        self.stays: dict[str, set[str]] = {}
        self._enter(start, {parameter})

    def _index(self, module: str, path: Path) -> None:
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

    def _is_class(self, name: str) -> bool:
        return isinstance(self._defined.get(name), ast.ClassDef)

    def _annotated(self, module: str, annotation: ast.AST | None) -> Kinds:
        words = {node.id for node in _inside(annotation) if isinstance(node, ast.Name)}
        return {
            name for name in map(self._names[module].get, words) if name and self._is_class(name)
        }

    def _parameters(self, name: str) -> dict[str, Kinds]:
        """Returns a function's parameters, in order, each with its kinds."""
        arguments = self._defined[name].args
        each = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        kinds = {one.arg: self._annotated(_module(name), one.annotation) for one in each}
        return kinds | {"self": {name.rpartition(".")[0]}} if "self" in kinds else kinds

    def _attribute(self, owner: str, name: str) -> Kinds:
        """Returns the kinds of an attribute, as it is annotated or as `__init__` makes it."""
        module, start = _module(owner), f"{owner}.__init__"
        for node in _inside(self._defined[owner]):
            if isinstance(node, ast.AnnAssign) and _last(node.target) == name:
                return self._annotated(module, node.annotation)
        if start not in self._defined:
            return set()
        for target, value in _assignments(self._defined[start]):
            if isinstance(target, ast.Attribute) and target.attr == name:
                return self._kinds(module, value, self._parameters(start))
        return set()

    def _kinds(self, module: str, node: ast.AST, local: Mapping[str, Kinds]) -> Kinds:
        """Returns the kinds of an expression."""
        if isinstance(node, ast.Name):
            return local.get(node.id, set())
        if isinstance(node, ast.Attribute):
            owners = self._kinds(module, node.value, local)
            return set().union(*(self._attribute(owner, node.attr) for owner in owners))
        if isinstance(node, ast.Call):
            return set().union(*map(self._result, self._called(module, node.func, local)))
        parts = ast.iter_child_nodes(node)
        return set().union(*(self._kinds(module, part, local) for part in parts))

    def _result(self, name: str) -> Kinds:
        if self._is_class(name):
            return {name}
        return self._annotated(_module(name), self._defined[name].returns)

    def _called(self, module: str, node: ast.AST, local: Mapping[str, Kinds]) -> list[str]:
        """Returns the functions and classes that the left side of a call may name."""
        names = []
        if isinstance(node, ast.Name):
            names = [self._names[module].get(node.id, "")]
        elif isinstance(node, ast.Attribute):
            names = [f"{kind}.{node.attr}" for kind in self._kinds(module, node.value, local)]
            of_module = self._names[module].get(_last(node.value), "").replace(":", ".")
            names.append(f"{of_module}:{node.attr}")
        return [name for name in names if name in self._defined]

    def _enter(self, name: str, brought: set[str]) -> None:
        """Notes a stay, and follows the parameters `brought` through the function."""
        carried = self.stays.setdefault(name, set())
        if brought <= carried:
            return
        carried |= brought
        function, module, local = self._defined[name], _module(name), self._parameters(name)
        following = set(carried)
        for target, value in [*_assignments(function)] * 2:  # an inner block may come before
            kinds = self._kinds(module, value, local)
            arrives = self._holds(value, module, local, following)
            for word in (part.id for part in _inside(target) if isinstance(part, ast.Name)):
                local[word] = local.get(word, set()) | kinds
                following |= {word} if arrives else set()
        for call in (part for part in _inside(function) if isinstance(part, ast.Call)):
            for called in self._called(module, call.func, local):
                given = self._given(called, call)
                held = {key for key, x in given if self._holds(x, module, local, following)}
                if held:
                    self._enter(called, held)

    def _holds(
        self, node: ast.AST, module: str, local: dict[str, Kinds], following: set[str]
    ) -> bool:
        """Whether an expression is the value, a container of it, or a record made of it."""
        if isinstance(node, ast.Name):
            return node.id in following
        made = isinstance(node, ast.Attribute | ast.Call)
        if made and not self._kinds(module, node, local):
            return False
        parts = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts.append(node.func.value)
        return any(self._holds(part, module, local, following) for part in parts)

    def _given(self, called: str, call: ast.Call) -> Iterator[tuple[str, ast.AST]]:
        """Yields the parameters of a called function, each with what it is given."""
        if self._is_class(called):
            return
        names = iter(self._parameters(called))
        if "self" in self._parameters(called):
            yield next(names), call.func.value
        yield from zip(names, call.args, strict=False)
        yield from ((word.arg, word.value) for word in call.keywords)


def _inside(node: ast.AST | None) -> Iterator[ast.AST]:
    return ast.walk(node) if node is not None else iter(())


def _module(name: str) -> str:
    return name.partition(":")[0]


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _assignments(function: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yields targets and values, outer blocks first; a loop gives to its variable."""
    for node in ast.walk(function):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value
        if isinstance(node, ast.For | ast.comprehension):
            yield node.target, node.iter
