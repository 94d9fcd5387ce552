"""Calls a reward function by the names of its parameters: our names, verl's or TRL's.

    def score(response, answer): ...                                              # one response
    def compute_score(data_source, solution_str, ground_truth, extra_info=None)   # verl
    def reward(completions, answer, **columns): ...                               # TRL: lists

A function gets what it names. With `**row` it also gets the rest of the row: answer, prompt,
`data_source` and the row's own columns; verl's only what verl gives. One that takes lists (it names
`completions` or verl's `solution_strs`) gets lists of one, and returns a list of one. An
`async def` is awaited.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

ACCEPTED: Final = "def NAME(response, answer) or def NAME(data_source, solution_str, ground_truth)"
_RESPONSE: Final = ("response", "solution_str", "completion")
_TRUTH: Final = ("answer", "ground_truth", "truth")
_QUESTION: Final = ("question", "prompt")
_OF_VERL: Final = ("data_source", "solution_str", "ground_truth", "extra_info")
_REST: Final = ("answer", "prompt", "data_source", "extra_info")
"""What `**row` holds besides the row's own columns."""
_LISTS: Final = {
    "completions": "response",
    "prompts": "prompt",
    "data_sources": "data_source",
    "solution_strs": "response",
    "ground_truths": "answer",
    "extra_infos": "extra_info",
}
"""Parameters that are lists in TRL and in verl's batch signature, and what each is a list of."""

Call = Callable[[Mapping[str, Any]], Any]
"""From `solution_str`, `ground_truth`, `data_source`, `prompt` and `extra_info` to the reward."""


def caller_of(function: Callable[..., Any]) -> Call:
    """Returns what calls a user's function for one response: async if the function is.

    ValueError for a function that yields and one that takes no response; the call raises ValueError
    if a parameter is neither one of ours nor a column of the row.
    """
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # of a built-in function
        return lambda question: function(**{name: question.get(name) for name in _OF_VERL})
    kinds = {parameter.kind for parameter in parameters.values()}
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds
    takes_lists = not parameters.keys().isdisjoint(("completions", "solution_strs"))
    if not takes_lists and not takes_all and parameters.keys().isdisjoint(_RESPONSE):
        names = ", ".join(parameters) or "nothing"
        raise ValueError(f"it takes {names}, and no response: write {ACCEPTED}")

    def arguments(question: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        values = _by_name(question)
        rest = [*_REST, *(question.get("extra_info") or {})]
        if takes_lists:
            values = {name: [value] for name, value in values.items()}
            values |= {name: values[of] for name, of in _LISTS.items()}
        elif parameters.keys().isdisjoint(("response", "completion")):
            rest = list(_OF_VERL)
        positional, named = _arguments(parameters, values)
        if takes_all:
            named |= {name: values[name] for name in rest if name not in parameters}
        return positional, named

    async def awaited(question: Mapping[str, Any]) -> Any:
        positional, named = arguments(question)
        return _of_one(await function(*positional, **named), in_list=takes_lists)

    def called(question: Mapping[str, Any]) -> Any:
        positional, named = arguments(question)
        return _of_one(function(*positional, **named), in_list=takes_lists)

    return awaited if _is_async(function) else called


def _of_one(reward: Any, *, in_list: bool) -> Any:
    if in_list and not isinstance(reward, str | bytes | Mapping):
        (reward,) = reward
    return reward


def _is_async(function: Callable[..., Any]) -> bool:
    """Returns whether a function's or an object's call is awaited; ValueError if it yields."""
    calls = function, type(function).__call__
    if any(map(inspect.isasyncgenfunction, calls)):
        raise ValueError(f"it yields, and a reward is returned: write {ACCEPTED}")
    return any(map(inspect.iscoroutinefunction, calls))


def _by_name(question: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all that a parameter may name; our names go before those of the row's columns."""
    extra = question.get("extra_info") or {}
    values = {str(name): value for name, value in extra.items()}
    values |= dict.fromkeys(_RESPONSE, question["solution_str"])
    values |= dict.fromkeys(_TRUTH, question["ground_truth"])
    values |= dict.fromkeys(_QUESTION, question.get("prompt", ""))
    return values | {"data_source": question["data_source"], "extra_info": extra}


def _arguments(
    parameters: Mapping[str, inspect.Parameter], values: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Returns positional and named arguments; ValueError for a name that nothing has."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name not in values:
            if parameter.default is parameter.empty:
                there = ", ".join(sorted(values))
                raise ValueError(f"it takes {name!r}, which the row does not have ({there})")
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(values[name])
        else:
            named[name] = values[name]
    return positional, named
