"""Functions of the user's, which a command names as `package.module:function`.

The working folder is searched last, so a module there replaces no installed one.
"""

import hashlib
import importlib
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_NOT_TOOLS: Final = ("problems", "reset", "reward")
_NAME: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def names_code(name: object) -> bool:
    """Returns whether a setting's value has the form `package.module:function`."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


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


def tool_names(kind: type) -> list[str]:
    """Returns the public methods of a class of tools that a model may call."""
    methods = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, _ in methods if name[0] != "_" and name not in _NOT_TOOLS]


def is_tool_class(kind: object) -> bool:
    """Returns whether an object is a class of tools: one with a method `reset`."""
    return isinstance(kind, type) and callable(getattr(kind, "reset", None))


def source_digest(name: str) -> str | None:
    """Returns a digest of the file of a name, which is not loaded; None if it is not found."""
    module = Path(*name.partition(":")[0].split("."))
    for folder in (*sys.path, ""):  # as `load_function` looks
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if (source := Path(folder, file)).is_file():
                return hashlib.sha256(source.read_bytes()).hexdigest()
    return None
