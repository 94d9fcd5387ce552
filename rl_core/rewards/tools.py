"""Calls the tools of a `ToolEnv` for a model (stage 3), and its reward (stage 4), in processes.

What a model wrote is parsed as JSON and checked by the tool's hints. A process dies or hangs as one
with a reward does: the call gets an error as its reply, and the calls before it are repeated in a
new process.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from pydantic import ValidationError

from rl_core.config.rollout import RewardConfig
from rl_core.envs.tool_env import ToolEnv, arguments_of
from rl_core.rewards.reward_process import Processes, RewardFailed, Seat
from rl_core.types import Problem, ToolCall, Turn

_MOST_CALLS: Final = 16
"""Calls of one turn that are made."""


class Toolbox:
    """`reward.workers` processes with the user's class; all responses to a problem share one."""

    def __init__(self, env: ToolEnv, limits: RewardConfig) -> None:
        self.kind = env.tools
        self._models = arguments_of(env.tools)
        self._processes = Processes(env.name, limits)
        try:
            first = self._processes.start()
        except RewardFailed as error:
            raise ValueError(f"env={env.name} cannot be loaded in a process ({error})") from None
        others = [Seat(self._processes.start) for _ in range(limits.workers - 1)]
        self._seats = [Seat(self._processes.start, first), *others]
        self._pools = [ThreadPoolExecutor(1, "tools") for _ in self._seats]

    def submit_calls(
        self, texts: Sequence[str], before: Sequence[Turn], problem: Problem
    ) -> Future[tuple[ToolCall, ...]]:
        """Makes the calls of a turn, JSON as a model wrote it, one after another."""
        return self._pool(problem).submit(self._make, texts, before, problem)

    def submit_reward(
        self, response: str, turns: Sequence[Turn], problem: Problem
    ) -> Future[dict[str, Any]]:
        """Returns a future of the method `reward`'s result; it raises RewardFailed."""
        message = question_of(response, problem) | _begun(problem, _history(turns))
        return self._pool(problem).submit(self._ask, message, problem)

    def close(self) -> None:
        """Kills all processes."""
        self._processes.close(self._pools)

    def _make(
        self, texts: Sequence[str], before: Sequence[Turn], problem: Problem
    ) -> tuple[ToolCall, ...]:
        history = _history(before)
        calls = []
        for number, text in enumerate(texts):
            try:
                if number >= _MOST_CALLS:
                    raise ValueError(f"only {_MOST_CALLS} calls are answered at a time")
                call = self._call(*self._checked(text), history, problem)
            except (ValueError, RewardFailed) as error:
                call = ToolCall("", {}, f"error: {error}", is_error=True, is_made=False)
            calls.append(call)
            history += _history_of(call)
        return tuple(calls)

    def _checked(self, text: str) -> tuple[str, dict[str, Any]]:
        """Returns a tool's name and its arguments; ValueError says what is wrong with them."""
        try:
            call = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            raise ValueError("the call is no JSON") from None
        if not isinstance(call, dict) or not isinstance(name := call.get("name"), str):
            raise ValueError("the call is no object with `name` and `arguments`")
        if name not in self._models:
            raise ValueError(f"there is no tool {name[:80]!r}: use {' or '.join(self._models)}")
        arguments: Any = call.get("arguments", call.get("parameters", {}))
        try:
            self._models[name].model_validate_json(json.dumps(arguments))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "arguments"
            raise ValueError(f"{name}: {place}: {first['msg']}") from None
        return name, arguments

    def _call(
        self, name: str, arguments: dict[str, Any], history: list[Any], problem: Problem
    ) -> ToolCall:
        reply = self._ask({"call": [name, arguments], **_begun(problem, history)}, problem)
        return ToolCall(name, arguments, reply["text"], is_error=reply["is_error"])

    def _ask(self, message: dict[str, Any], problem: Problem) -> dict[str, Any]:
        return self._seats[problem.index % len(self._seats)].ask(message)

    def _pool(self, problem: Problem) -> ThreadPoolExecutor:
        return self._pools[problem.index % len(self._pools)]


def question_of(response: str, problem: Problem) -> dict[str, Any]:
    """Returns what a function of the user's may name, under verl's names."""
    return {
        "data_source": problem.data_source,
        "solution_str": response,
        "ground_truth": problem.ground_truth,
        "prompt": problem.messages[-1]["content"] if problem.messages else "",
        "extra_info": problem.facts,
    }


def _begun(problem: Problem, history: Sequence[Any]) -> dict[str, Any]:
    given = question_of("", problem)
    names = {"question": given["prompt"], "answer": given["ground_truth"]}
    about: Mapping[str, Any] = {**problem.facts, **names, "data_source": problem.data_source}
    return {"problem": about, "history": list(history)}


def _history(turns: Sequence[Turn]) -> list[Any]:
    return [made for turn in turns for call in turn.calls for made in _history_of(call)]


def _history_of(call: ToolCall) -> list[Any]:
    return [[call.name, call.arguments, call.reply]] if call.is_made else []


def _refuse_constant(name: str) -> None:
    raise ValueError(name)
