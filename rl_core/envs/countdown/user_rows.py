"""Countdown rows of a user's file: `{nums, target}`, or rows of verl and TinyZero (stage 1)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, get_args

from rl_core.envs.countdown.prompts import DATA_SOURCE, Template, render_messages
from rl_core.envs.countdown.settings import CountdownConfig
from rl_core.envs.user_rows import (
    OwnProblem,
    Record,
    choose_prompt,
    columns_of,
    own_prompt,
    shown,
    struct_of,
)

_LONGEST_NUMBER = 20
NUM_OPERANDS = range(2, 7)
NUMBERS = range(1, 1_000)
TARGETS = range(1, 10**18)
"""What the solver takes."""


def read_row(env: CountdownConfig, record: Record) -> OwnProblem:
    """Returns the puzzle of one row, not yet solved.

    Raises:
        ValueError: something is missing, of a wrong type or outside what the solver takes; the
            message names the value, the limit and a remedy.
    """
    truth = _from_text(struct_of(record, "reward_model").get("ground_truth"))
    stated: list[tuple[Any, Any]] = []
    own = record.get("nums") if record.get("nums") is not None else record.get("numbers")
    if own is not None or record.get("target") is not None:
        stated.append((_whole(own), _whole(record.get("target"))))
    if truth is not None:
        if not isinstance(truth, dict):
            raise ValueError(f"ground_truth={shown(truth)} must be {{target, numbers}}")
        stated.append((_whole(truth.get("numbers")), _whole(truth.get("target"))))
    if not stated:
        raise ValueError(
            "it has neither nums (or numbers) and target nor reward_model.ground_truth: add them"
        )
    numbers, target = stated[0]
    _check_numbers(numbers)
    if type(target) is not int or target not in TARGETS:
        raise ValueError(
            f"target={shown(target)} must be a whole number from {TARGETS[0]} to {TARGETS[-1]:.0e}"
        )
    if stated[-1] != stated[0]:
        raise ValueError(
            f"nums={numbers} and target={target} are not those of reward_model.ground_truth "
            f"({shown(truth)}): correct one of them"
        )
    prompt, template = choose_prompt(
        own_prompt(record),
        (env.prompt_template, *get_args(Template)),
        lambda template: render_messages(template, numbers, target),
    )
    return OwnProblem(
        key=(tuple(sorted(numbers)), target),
        prompt=prompt,
        template=template,
        truth={"target": target, "numbers": numbers},
    )


def with_solutions(problems: Sequence[OwnProblem]) -> list[OwnProblem | None]:
    """Returns each puzzle with a solution and the number of solutions, None where it has none."""
    from rl_core.envs.countdown.solving.solver import solve_many

    keys = [problem.key for problem in problems]
    solved = solve_many([numbers for numbers, _ in keys], [target for _, target in keys])
    return [
        None if solution is None else replace(problem, solution=solution, num_solutions=count)
        for problem, (solution, count) in zip(problems, solved, strict=True)
    ]


def user_table(split: str, problems: Sequence[OwnProblem]) -> Any:
    """Returns the rows of one split as an Arrow table, with the schema `COUNTDOWN_DATASET`."""
    import pyarrow as pa

    from rl_core.envs.countdown.table import COUNTDOWN_DATASET

    columns = columns_of(DATA_SOURCE, split, problems)
    truths = [problem.truth for problem in problems]
    columns["nums"] = [truth["numbers"] for truth in truths if isinstance(truth, dict)]
    columns["target"] = [truth["target"] for truth in truths if isinstance(truth, dict)]
    return pa.Table.from_pydict(columns, schema=COUNTDOWN_DATASET)


def _from_text(value: Any) -> Any:
    """Returns a list or an object that a file holds as JSON text; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def _whole(value: Any) -> Any:
    """Returns 40.0 and "40" as 40, also in lists and in lists that are text; all else as it is."""
    value = _from_text(value)
    if isinstance(value, list):
        return [_whole(item) if not isinstance(item, list) else item for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < _LONGEST_NUMBER:
        return int(value)
    return value


def _check_numbers(numbers: Any) -> None:
    limits = f"the solver takes whole numbers from {NUMBERS[0]} to {NUMBERS[-1]}"
    if not isinstance(numbers, list):
        raise ValueError(f"nums={shown(numbers)} must be a list: {limits}")
    if len(numbers) not in NUM_OPERANDS:
        raise ValueError(
            f"nums={shown(numbers)} holds {len(numbers)} numbers, the solver takes "
            f"{NUM_OPERANDS[0]} to {NUM_OPERANDS[-1]}: leave the row out"
        )
    for number in numbers:
        if type(number) is not int or number not in NUMBERS:
            raise ValueError(
                f"nums={shown(numbers)} holds {shown(number)}, {limits}: leave the row out"
            )
