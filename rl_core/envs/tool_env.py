"""An env made of a plain class: the model may call its public methods (`env=my_module:MyClass`).

    class Calculator:
        def problems(self, rng): ...         # yields `TextProblem`s; without it, data.train_files
        def reset(self, problem): ...        # called first: {"question": ..., "answer": ..., ...}
        def multiply(self, a: int, b: int) -> int: ...   # a tool, with hints and a docstring
        def reward(self, response): ...      # as any reward; without it, the answer in its tags

Each response has an object of its own, in a process with the limits of rewards. Nothing that a
model wrote is executed: it names a declared method, with arguments that fit the hints.
"""

import inspect
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from types import MethodType
from typing import Any, ClassVar, Final, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from rl_core.envs.custom import Custom
from rl_core.envs.text_env import EnvTurn, TextProblem
from rl_core.system.named_code import tool_names
from rl_core.types import ChatTemplate

HERMES: Final = ("<tool_call>", "</tool_call>")
"""Around a call if a chat template writes none: Qwen's, Hermes' and SmolLM3's."""
_STRICT: Final = ConfigDict(extra="forbid", strict=True)


class ToolEnv(Custom):
    """Problems that are solved with tools."""

    name: str = ""  # type: ignore[assignment]  # each class has its own
    """Chosen by `env=my_module:MyClass`."""
    prompt_template: Literal["chat"] = "chat"
    """The tokenizer's own tags, which show the tools."""
    max_turns: int = Field(8, ge=2)
    """Times that the model writes; each time but the last its calls of tools are answered."""

    tools: ClassVar[Any] = object
    """The user's class."""
    checks: ClassVar = replace(
        Custom.checks, answer_mark="", parameters=lambda env: {"has_reward": True}
    )

    @property
    def chat_template(self) -> ChatTemplate:
        """The arguments of the chat template, the tools among them."""
        return {**self.chat_args, "tools": methods_of(self.tools)}

    def problems(self, rng: random.Random) -> Iterator[TextProblem]:
        """Yields the problems of the user's class."""
        yield from self.tools().problems(rng)

    def reply(self, response: str, truth: Any) -> EnvTurn | None:
        """Not called: `TurnTaking` asks the tools."""
        raise NotImplementedError


@cache
def tool_env_of(tools: type) -> type[ToolEnv]:
    """Returns the env of a user's class; ValueError if a tool lacks hints or a docstring."""
    if not (names := tool_names(tools)):
        raise ValueError("it has no public method that a model could call")
    for name in names:
        method = getattr(tools, name)
        hints = get_type_hints(method)
        without = [parameter for parameter in _parameters(method) if parameter not in hints]
        if without or not method.__doc__:
            what = f"no type hint for {without[0]}" if without else "no docstring"
            raise ValueError(f"its method {name} has {what}: a model is shown both")
        if inspect.iscoroutinefunction(method):
            raise ValueError(f"its method {name} is async: write it without")
    makes_problems = hasattr(tools, "problems")
    members: dict[str, Any] = {
        "__module__": tools.__module__,
        "__qualname__": tools.__qualname__,
        "__doc__": tools.__doc__,
        "tools": tools,
        "makes_problems": classmethod(lambda cls: makes_problems),
        # Another process makes this class from the user's, which it finds by its name.
        "__reduce__": lambda env: (_restored, (tools, env.model_dump())),
    }
    if makes_problems:  # whose prompts are whole
        members["templates"] = {}
    return type(tools.__name__, (ToolEnv,), members)


def _restored(tools: type, settings: dict[str, Any]) -> ToolEnv:
    return tool_env_of(tools).model_validate(settings)


@cache
def methods_of(tools: type) -> tuple[Callable[..., Any], ...]:
    """Returns the tools as a chat template takes them: methods, whose schemas it shows."""
    return tuple(MethodType(getattr(tools, name), tools) for name in tool_names(tools))


@cache
def arguments_of(tools: type) -> dict[str, type[BaseModel]]:
    """Returns what checks the arguments of each tool: by its hints, as strictly as JSON allows."""
    models = {}
    for name in tool_names(tools):
        method = getattr(tools, name)
        hints = get_type_hints(method)
        fields: dict[str, Any] = {
            f"argument_{i}": (
                hints[key],
                Field(... if p.default is p.empty else p.default, alias=key),
            )
            for i, (key, p) in enumerate(_parameters(method).items())
        }
        models[name] = create_model(name, __config__=_STRICT, **fields)
    return models


def calls_in(text: str, marks: tuple[str, str] = HERMES) -> list[str]:
    """Returns the JSON of each call in a response, after its thoughts."""
    opens, closes = marks
    text = text.rpartition("</think>")[2]
    if not opens:
        return [text.strip()] if text.lstrip().startswith("{") else []
    parts = [part.partition(closes)[0] if closes else part for part in text.split(opens)[1:]]
    return [part.strip() for part in parts]


def _parameters(method: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict([*inspect.signature(method).parameters.items()][1:])
