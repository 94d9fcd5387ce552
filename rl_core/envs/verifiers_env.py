"""A `SingleTurnEnv` of the package verifiers: `env=my_module:load_environment`, as that names it.

Its data sets give the problems, and its rubric the score, in the process of `env.reward`. Not here:
its `MultiTurnEnv`, whose replies are messages of a running rollout; tools are `tool_env.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar, Final, Literal

from rl_core.envs.rows import Row, own_prompt, prompt_key, text_of_truth
from rl_core.envs.text_env import TextEnv
from rl_core.section import FunctionNames
from rl_core.types import ScoredText

LOADER: Final = "load_environment"
"""The function that each of verifiers' modules has."""


class VerifiersEnv(TextEnv):
    """Problems of a `SingleTurnEnv`, scored by its rubric."""

    name: str = ""
    """Chosen by `env=my_module:load_environment`."""
    prompt_template: Literal["chat"] = "chat"
    """The tokenizer's own tags."""

    load: ClassVar[Any] = None

    def rows_of_splits(self, *, train_size: int, test_size: int, seed: int) -> dict[str, list[Row]]:
        """Returns the rows of its data sets, those of the test split not in the other again."""
        environment = _single_turn(self.name, type(self).load())
        tests = [self._row(one) for one in environment.get_eval_dataset()][:test_size]
        keys = {row.key for row in tests}
        rows = [row for one in environment.get_dataset() if (row := self._row(one)).key not in keys]
        if len(rows) < train_size or len(tests) < test_size:
            raise ValueError(
                f"env={self.name} has {len(rows):,} train and {len(tests):,} test problems: "
                f"data.train_size={train_size:,} and data.test_size={test_size:,} ask for more"
            )
        return {"train": rows[:train_size], "test": tests}

    def score(self, response: str, truth: Any) -> ScoredText:
        """Compares word for word: only for the strict and lenient readings of a response."""
        return self.score_words(response, text_of_truth(truth["answer"]))

    def _row(self, record: dict[str, Any]) -> Row:
        prompt = own_prompt(record) or []
        truth = {"answer": record.get("answer", ""), "info": record.get("info") or {}}
        task = record.get("task") or "default"
        return Row(prompt_key(prompt), prompt, truth | {"task": task}, f"{self.name}/{task}")


def _single_turn(name: str, environment: Any) -> Any:
    import verifiers

    if not isinstance(environment, verifiers.SingleTurnEnv):
        kind = type(environment).__name__
        raise ValueError(
            f"env={name} returns {kind}: only a SingleTurnEnv of verifiers is taken; write several "
            "turns as a method `reply`, and tools as a class of tools (docs/training.md)"
        )
    return environment


@cache
def verifiers_env_of(load: Callable[[], Any]) -> type[VerifiersEnv]:
    """Returns the env of a module's `load_environment`."""
    name = f"{load.__module__}:{load.__qualname__}"
    about = {"__module__": load.__module__, "__qualname__": load.__qualname__}
    members: dict[str, Any] = {
        "load": staticmethod(load),
        "__doc__": load.__doc__,
        "reward": (name,),
    }
    # Another process makes this class from the function, which it finds by its name.
    members["__reduce__"] = lambda env: (_restored, (load, env.model_dump()))
    members["__annotations__"] = {"reward": FunctionNames}
    return type("Verifiers", (VerifiersEnv,), {**about, **members})


def _restored(load: Callable[[], Any], settings: dict[str, Any]) -> VerifiersEnv:
    return verifiers_env_of(load).model_validate(settings)
