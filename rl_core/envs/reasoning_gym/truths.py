"""What the problems and their scoring share: the truth as JSON, and the tasks that are refused.

The JSON keeps tuples and keys that are not texts, since scorers compare them.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, get_args, get_type_hints

INSTALL: Final = "env=reasoning_gym needs the package: pip install reasoning-gym"
REFUSED: Final = ("intermediate_integration", "polynomial_multiplication", "simple_integration")
WHY_REFUSED: Final = "is not taken: its scorer runs what a model wrote as Python; leave it out"

_TUPLE: Final = "__tuple__"
_ITEMS: Final = "__items__"


def to_json(value: Any) -> Any:
    """Returns a value whose containers are lists and objects; other values stay as they are."""
    if isinstance(value, tuple):
        return {_TUPLE: [to_json(item) for item in value]}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if all(isinstance(key, str) for key in value) and not {_TUPLE, _ITEMS} & value.keys():
        return {key: to_json(item) for key, item in value.items()}
    return {_ITEMS: [[to_json(key), to_json(item)] for key, item in value.items()]}


def from_json(value: Any) -> Any:
    """Returns what `to_json` was given."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if _TUPLE in value:
        return tuple(from_json(item) for item in value[_TUPLE])
    if _ITEMS in value:
        return {from_json(key): from_json(item) for key, item in value[_ITEMS]}
    return {key: from_json(item) for key, item in value.items()}


def with_enums(config: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Returns settings with enums' members in place of texts, as the fields of `kind` say."""
    hints = get_type_hints(kind)
    return {name: _member(value, hints.get(name)) for name, value in config.items()}


def _member(value: Any, hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if isinstance(value, list) and get_args(hint):
        return [_member(item, get_args(hint)[0]) for item in value]
    return value
