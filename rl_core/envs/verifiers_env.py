"""A `SingleTurnEnv` of the package verifiers: `env=my_module:load_environment`, as that names it.

Its data sets give the problems, and its rubric the score, in the process of `env.reward`. Not here:
its `MultiTurnEnv`, whose replies are messages of a running rollout; tools are `tool_env.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from rl_core.envs.rows import Row, own_prompt, prompt_key, tables_of, text_of_truth
from rl_core.envs.text_env import Rows, TextEnv, score_words
from rl_core.section import FunctionNames
from rl_core.types import ScoredText

if TYPE_CHECKING:
    import pyarrow as pa

LOADER: Final = "load_environment"
"""The function that each of verifiers' modules has."""


def _make_rows(
    env: VerifiersEnv, *, train_size: int, test_size: int, seed: int
) -> dict[str, pa.Table]:
    """Returns the rows of its data sets, those of the test split not in the other again."""
    import verifiers

    environment = type(env).load()
    if not isinstance(environment, verifiers.SingleTurnEnv):
        raise ValueError(
            f"env={env.name} returns {type(environment).__name__}: only a SingleTurnEnv of "
            "verifiers is taken; write several turns as a method `reply`, and tools as a class of "
            "tools (docs/tools.md)"
        )
    tests = [_row(env, one) for one in environment.get_eval_dataset()][:test_size]
    keys = {row.key for row in tests}
    rows = [row for one in environment.get_dataset() if (row := _row(env, one)).key not in keys]
    if len(rows) < train_size or len(tests) < test_size:
        raise ValueError(
            f"env={env.name} has {len(rows):,} train and {len(tests):,} test problems: "
            f"data.train_size={train_size:,} and data.test_size={test_size:,} ask for more"
        )
    return tables_of({"train": rows[:train_size], "test": tests}, env.rows.schema())


def _row(env: VerifiersEnv, record: dict[str, Any]) -> Row:
    prompt = own_prompt(record) or []
    truth = {"answer": record.get("answer", ""), "info": record.get("info") or {}}
    task = record.get("task") or "default"
    return Row(prompt_key(prompt), prompt, truth | {"task": task}, f"{env.name}/{task}")


class VerifiersEnv(TextEnv):
    """Problems of a `SingleTurnEnv`, scored by its rubric."""

    name: str = ""
    """Chosen by `env=my_module:load_environment`."""
    prompt_template: Literal["chat"] = "chat"
    """The tokenizer's own tags."""

    rows: ClassVar = Rows(make=_make_rows)
    load: ClassVar[Any] = None

    def score(self, response: str, truth: Any) -> ScoredText:
        """Compares word for word: only for the strict and lenient readings of a response."""
        return score_words(self, response, text_of_truth(truth["answer"]))


@cache
def verifiers_env_of(load: Callable[[], Any]) -> type[VerifiersEnv]:
    """Returns the env of a module's `load_environment`."""
    name = f"{load.__module__}:{load.__qualname__}"
    members: dict[str, Any] = {
        "__module__": load.__module__,
        "__qualname__": load.__qualname__,
        "__doc__": load.__doc__,
        "load": staticmethod(load),
        "reward": (name,),
        "__annotations__": {"reward": FunctionNames},
        # Another process makes this class from the function, which it finds by its name.
        "__reduce__": lambda env: (_restored, (load, env.model_dump())),
    }
    return type("Verifiers", (VerifiersEnv,), members)


def _restored(load: Callable[[], Any], settings: dict[str, Any]) -> VerifiersEnv:
    return verifiers_env_of(load).model_validate(settings)
