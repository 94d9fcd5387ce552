"""Stage 4: `python -m rl_core.rewards.reward_worker`, which calls a user's reward function.

Started and watched by `rl_core.rewards.scoring`. It imports very little, so it starts fast; a crash
in the function ends only this process. The first message names the function; the reply, once it is
loaded, is `{"is_async": ...}` or `{"error": ...}`. From then on, each message gets a reply with its
`id`: one after another, and those of an `async def` as they are ready.
"""

import inspect
import json
import numbers
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

from rl_core.rewards.by_name import Call, caller_of
from rl_core.system.child_process import Channel, channel_to_parent
from rl_core.system.named_code import is_tool_class, load_function, tool_names
from rl_core.system.sealed import die_with, stay_among_own
from rl_core.system.words import cut, in_one_line

LONGEST_ANSWER: Final = 1_000
"""Characters of `pred` that are kept."""
LONGEST_REPLY: Final = 10_000
"""Characters of a tool's reply that are kept."""
_LARGEST_SCORE: Final = 1e9  # whose square a float32 still holds
_MOST_OBJECTS: Final = 10_000


def main() -> None:
    """Serves until the channel closes; arguments: MiB, the parent's pid."""
    channel = channel_to_parent()
    memory_mib, parent = sys.argv[1:]
    die_with(int(parent))
    limit = int(memory_mib) * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stay_among_own()
    sys.path.append(str(Path.cwd()))  # where the user's module may lie: after all others
    try:
        settings = channel.receive()
        function = load(settings["function"])
    except BaseException as error:  # noqa: BLE001  # even sys.exit in a user's module is an answer
        channel.send({"error": describe(error)})
        return
    is_async = inspect.iscoroutinefunction(function)
    channel.send({"is_async": is_async})
    with suppress(EOFError):
        if is_async:
            import asyncio

            asyncio.run(_answer_all(channel, function, settings["timeout_s"]))
        own_pid = os.getpid()
        while True:
            question = channel.receive()
            _send(channel, own_pid, question, answer(function, question))


async def _answer_all(channel: Channel, call: Call, timeout_s: float) -> None:
    """Awaits the calls of all messages at a time: the sender limits how many they are."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    own_pid = os.getpid()
    tasks: set[asyncio.Task[None]] = set()

    async def answer_one(question: Mapping[str, Any]) -> None:
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                reply = checked(await call(question))
        except BaseException as error:  # noqa: BLE001  # as in `answer`
            is_late = limit.expired()
            reply = {"error": f"no answer within {timeout_s:g} s" if is_late else describe(error)}
        _send(channel, own_pid, question, reply)

    with ThreadPoolExecutor(1) as reader:
        while True:
            loop = asyncio.get_running_loop()
            question = await loop.run_in_executor(reader, channel.receive)
            tasks.add(task := loop.create_task(answer_one(question)))
            task.add_done_callback(tasks.discard)


def _send(
    channel: Channel, own_pid: int, question: Mapping[str, Any], reply: Mapping[str, Any]
) -> None:
    if os.getpid() != own_pid:  # the function forked, and this is the copy
        os._exit(0)
    channel.send({"id": question["id"], **reply})


def load(name: str) -> Call:
    """Returns what calls the function, class of tools or rubric of a `package.module:name`."""
    function = load_function(name)
    if name.endswith(":load_environment"):  # of verifiers
        return call_of_rubric(function())
    if not is_tool_class(function):
        return caller_of(function)
    tools = ToolObjects(cast(type, function))
    return lambda message: tools.reply(message) if "call" in message else tools.reward(message)


def answer(call: Call, question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the result of the user's function for one response, or why it is not a reward."""
    try:
        result = call(question)
        return result if "call" in question else checked(result)
    except BaseException as error:  # noqa: BLE001  # whatever a user's function raises is an answer
        return {"error": describe(error)}


def checked(result: object) -> dict[str, Any]:
    """Returns `score`, and `acc` and `pred` if they are given, as plain values.

    TypeError for neither a number nor a mapping with one, ValueError for a score beyond
    `_LARGEST_SCORE`, or NaN.
    """
    values: Mapping[str, Any] = result if isinstance(result, Mapping) else {"score": result}
    score: Any = values.get("score")
    # The score may be a number or a truth value, of Python, numpy or torch.
    if not isinstance(score, numbers.Real) and getattr(score, "shape", None) != ():
        is_mapping = isinstance(result, Mapping)
        kind = f"a mapping of {[*values]!r:.80}" if is_mapping else type(result).__name__
        raise TypeError(f"returned {kind}, not a number or a mapping with a number 'score'")
    number = float(score)
    if not abs(number) <= _LARGEST_SCORE:  # nor NaN
        raise ValueError(f"returned {number:g}, which is no score: -1e9 to 1e9 are")
    plain: dict[str, Any] = {"score": number}
    if values.get("acc") is not None:
        plain["acc"] = bool(values["acc"] >= 1)  # half of the tests passed is not correct
    if "pred" in values:
        text = "" if values["pred"] is None else str(values["pred"])[:LONGEST_ANSWER].strip()
        plain["pred"] = _whole(text) or None
    return plain


def describe(error: BaseException) -> str:
    """Returns an error in a line of moderate length, which can be tokenized and written."""
    return _whole(cut(in_one_line(f"{type(error).__name__}: {error}").removesuffix(":"), 300))


def call_of_rubric(environment: Any) -> Call:
    """Returns what awaits an environment's rubric for one response."""
    import verifiers

    async def score(question: Mapping[str, Any]) -> dict[str, float]:
        truth = question["ground_truth"]
        prompt = [{"role": "user", "content": question["prompt"]}]
        state = verifiers.State(input={**truth, "prompt": prompt, "example_id": 0})
        state["completion"] = [{"role": "assistant", "content": question["solution_str"]}]
        state["trajectory"] = []
        state["timing"] = {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0}
        await environment.rubric.score_rollout(state)
        return {"score": float(state["reward"])}

    return score


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
            text = f"error: {describe(error)}"
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
    return _whole(text[:LONGEST_REPLY])


def _whole(text: str) -> str:
    """Returns a text without halves of surrogate pairs, as json.loads gives them."""
    return text.encode(errors="replace").decode()


if __name__ == "__main__":
    main()
