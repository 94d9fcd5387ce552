"""Functions of the user's, which a command names as `package.module:function`.

The working folder is searched last, so a module there replaces no installed one.
"""

import ast
import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_NOT_TOOLS: Final = ("problems", "reset", "reward")
_INSTALLED: Final = "site-packages"


def names_code(name: object) -> bool:
    """Returns whether a setting's value has the form `package.module:function`."""
    return isinstance(name, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name) is not None


def load_function(name: str) -> Callable[..., Any]:
    """Returns the function of a name; whatever its module raises is raised here."""
    module_name, _, attribute = name.partition(":")
    sys.path.append(here := str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    finally:
        sys.path.reverse()  # the last one: the module may have added folders of its own
        sys.path.remove(here)
        sys.path.reverse()
    function = getattr(module, attribute, None)
    if not callable(function):
        raise ValueError(f"{Path(module.__file__ or module_name)} has no function {attribute}")
    return function  # type: ignore[no-any-return]  # callable() says no more


def parameters_of(name: str) -> set[str] | None:
    """Returns what a function takes by its file, which is not loaded; None if that does not say."""
    place = _place(name)
    for node in _parsed(place[1]) if place else []:
        if getattr(node, "name", None) == name.partition(":")[2]:
            # Of a class there are none.
            parts = ast.walk(getattr(node, "args", ast.Pass()))
            return {part.arg for part in parts if isinstance(part, ast.arg)} or None
    return None


def tool_names(kind: type) -> list[str]:
    """Returns the public methods of a class of tools that a model may call."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, _ in methods if name[0] != "_" and name not in _NOT_TOOLS]


def is_tool_class(kind: object) -> bool:
    """Returns whether an object is a class of tools: one with a method `reset`."""
    return isinstance(kind, type) and callable(getattr(kind, "reset", None))


def source_digest(name: str) -> str | None:
    """Returns a digest of the file of a name, which is not loaded; None if it is not found."""
    place = _place(name)
    return hashlib.sha256(place[1].read_bytes()).hexdigest() if place else None


def code_digest(name: str) -> str | None:
    """Returns a digest of the file of a name and of the user's files that it imports.

    Nothing is loaded, and no installed package is read; None if the file is not found.
    """
    if (place := _place(name)) is None:
        return None
    folder, first = place
    files = [first]
    for file in files:  # which grows
        if _INSTALLED not in file.parts:
            near = [_file(root, module) for root in (folder, file.parent) for module in _uses(file)]
            files += [one for one in dict.fromkeys(filter(None, near)) if one not in files]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _place(name: str) -> tuple[Path, Path] | None:
    """Returns the file of a name, after the folder in which it is searched, as `load_function`."""
    for folder in map(Path, (*sys.path, "")):
        if (file := _file(folder, name.partition(":")[0])) is not None:
            return folder, file
    return None


def _file(folder: Path, module: str) -> Path | None:
    place = folder.joinpath(*module.split("."))
    files = (place.with_suffix(".py"), place / "__init__.py")
    return next((file.resolve() for file in files if file.is_file()), None)


def _uses(file: Path) -> list[str]:
    """Returns the names of the modules that a file imports, those of `from a import b` as well."""
    nodes = _parsed(file)
    names = [x.name for node in nodes if isinstance(node, ast.Import) for x in node.names]
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names += [module, *(f"{module}.{x.name}".strip(".") for x in node.names)]
    return [name for name in names if name]


def _parsed(file: Path) -> list[ast.AST]:
    """Returns a file's nodes, the outer ones first; none if it is no Python."""
    try:
        return [*ast.walk(ast.parse(file.read_bytes()))]
    except (SyntaxError, ValueError):
        return []
