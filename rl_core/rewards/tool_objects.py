"""The objects of a user's class of tools, in the process of `reward_worker` (stages 3 and 4).

A message holds all calls of a response before it, with their replies. By these its object is found
again; if the process is a new one, the calls are repeated on a new object.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from rl_core.rewards.by_name import caller_of
from rl_core.system.named_code import tool_names
from rl_core.system.words import cut, in_one_line

LONGEST_REPLY: Final = 10_000
"""Characters of a tool's reply that are kept."""
_MOST_OBJECTS: Final = 10_000


class ToolObjects:
    """One object per response."""

    def __init__(self, kind: type) -> None:
        self._kind = kind
        self._names = tool_names(kind)
        self._objects: dict[str, list[Any]] = {}

    def reply(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a tool's reply as `text`; an error of its own is one with `is_error`."""
        name, arguments = message["call"]
        assert name in self._names
        tools = self._taken(message)
        is_error = False
        try:
            text = _as_text(getattr(tools, name)(**arguments))
        except Exception as error:  # noqa: BLE001  # the model reads it
            text = cut(in_one_line(f"error: {type(error).__name__}: {error}"), 300)
            is_error = True
        key = _key(message["problem"], [*message["history"], [name, arguments, text]])
        self._objects.setdefault(key, []).append(tools)
        while len(self._objects) > _MOST_OBJECTS:
            del self._objects[next(iter(self._objects))]
        return {"text": text, "is_error": is_error}

    def reward(self, message: Mapping[str, Any]) -> Any:
        """Returns what the user's method `reward` does."""
        reward = self._taken(message).reward
        return caller_of(reward)(message) if inspect.signature(reward).parameters else reward()

    def _taken(self, message: Mapping[str, Any]) -> Any:
        """Returns the object with this history, a new one if there is none."""
        key = _key(message["problem"], message["history"])
        if objects := self._objects.get(key):
            tools = objects.pop()
            if not objects:
                del self._objects[key]
            return tools
        tools = self._kind()
        tools.reset(message["problem"])
        for name, arguments, _ in message["history"]:
            with suppress(Exception):
                getattr(tools, name)(**arguments)
        return tools


def _key(problem: Mapping[str, Any], history: Sequence[Any]) -> str:
    return json.dumps([problem, history])


def _as_text(reply: object) -> str:
    text = reply if isinstance(reply, str) else json.dumps(reply, default=str, ensure_ascii=False)
    # Half of a surrogate pair, as json.loads gives it, cannot be tokenized.
    return text[:LONGEST_REPLY].encode(errors="replace").decode()
