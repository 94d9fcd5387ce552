"""Ways to break a sound data set, a rule at a time, and the checks that must say so."""

from collections.abc import Callable
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import yaml

from rl_core.envs.countdown.templates import render_messages
from rl_core.envs.gsm8k import Gsm8k
from tests.support.solving import solve

Rows = list[dict[str, Any]]
Break = Callable[[Rows, Rows], None]
BREAKS: list[tuple[str, Break | None, dict[str, int]]] = []
"""An env, what breaks the rows of its data set, and how many rows each check then finds."""


def breaks(*envs: str, **expected: int) -> Callable[[Break], Break]:
    def enter(change: Break) -> Break:
        BREAKS.extend((env, change, expected) for env in envs)
        return change

    return enter


def keys_of(place: str) -> list[Any]:
    return [int(key) if key.strip("-").isdigit() else key for key in place.split(".")]


def breaking(name: str, case: dict[str, Any]) -> Break:
    """Returns what breaks rows as a case says; a place is named as `train.0.prompt`."""

    def change(train: Rows, test: Rows) -> None:
        splits: Any = {"train": train, "test": test}
        copies = {
            to: reduce(getitem, keys_of(of), splits) for to, of in case.get("copies", {}).items()
        }
        for place, value in (case.get("writes", {}) | copies).items():
            *outer, last = keys_of(place)
            reduce(getitem, outer, splits)[last] = value
        for row, problem in case.get("solves", {}).items():
            solved(reduce(getitem, keys_of(row), splits), *problem)

    change.__name__ = name
    return change


def solved(row: dict[str, Any], nums: list[int], target: int, solution: str) -> None:
    """Changes a problem everywhere it is written, so that it stays one sound problem."""
    row |= {"nums": nums, "target": target, "prompt": render_messages("base", nums, target)}
    row["reward_model"]["ground_truth"] = {"target": target, "numbers": nums}
    row["extra_info"] |= {"solution": solution, "num_solutions": max(1, solve(nums, target)[1])}


for name, case in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items():
    breaks(*case["envs"], **case["finds"])(breaking(name, case))


@breaks("countdown", countdown_unique=1)
def the_same_problem_twice(train: Rows, _: Rows) -> None:
    twin = train[3]
    solved(train[4], twin["nums"][::-1], twin["target"], twin["extra_info"]["solution"])


@breaks("countdown", countdown_splits_disjoint=1)
def a_training_problem_in_test(train: Rows, test: Rows) -> None:
    twin = train[3]
    turned = twin["nums"][1:] + twin["nums"][:1]
    solved(test[4], turned, twin["target"], twin["extra_info"]["solution"])


@breaks("countdown", countdown_prompt=9)
def other_prompts(train: Rows, test: Rows) -> None:
    train[6]["prompt"] = train[7]["prompt"]
    train[7]["prompt"][0]["content"] += " "  # one character more
    train[8]["prompt"][0]["content"] = train[8]["prompt"][0]["content"].replace("each", "eacn")
    train[9]["prompt"] = render_messages("qwen-instruct", train[9]["nums"], train[9]["target"])
    train[10]["prompt"] = render_messages("chat", train[10]["nums"], train[10]["target"])
    test[5]["prompt"][0]["role"] = "system"
    test[6]["prompt"] = render_messages("base", test[6]["nums"], test[6]["target"] + 1)
    test[7]["prompt"].append({"role": "assistant", "content": "1"})
    test[8]["prompt"] = []


@breaks("countdown", countdown_solution=3)
def wrong_solutions(train: Rows, test: Rows) -> None:
    train[8]["extra_info"]["solution"] += " + 0"
    train[9]["extra_info"]["solution"] = train[10]["extra_info"]["solution"]
    solved(test[8], [2, 5, 2], 34, "2**5 + 2")  # what eval would accept


@breaks("countdown", "number_questions", "reasoning_gym", row_count=1)
def too_few_rows(train: Rows, test: Rows) -> None:
    train.pop()


@breaks("countdown", splits_not_empty=1)
def no_rows(_: Rows, test: Rows) -> None:
    test.clear()


@breaks("gsm8k", gsm8k_prompt=3)
def other_word_problems(train: Rows, test: Rows) -> None:
    test[0]["prompt"][0]["content"] = "Half?"
    train[0]["prompt"] *= 2
    train[1]["prompt"] = Gsm8k().prompt(" ")


@breaks("custom", text_unique=1)
def other_white_space(train: Rows, test: Rows) -> None:
    train[1]["prompt"][0]["content"] = train[0]["prompt"][0]["content"].replace(" ", "\n ")


@breaks("custom", "reasoning_gym", text_splits_disjoint=1)
def a_training_prompt_in_test(train: Rows, test: Rows) -> None:
    test[0]["prompt"][0]["content"] = "  " + train[0]["prompt"][0]["content"]


@breaks("number_questions", number_questions_splits=1)
def a_list_of_the_test_split_turned_round(train: Rows, test: Rows) -> None:
    asked, _, numbers = test[0]["prompt"][0]["content"].partition(": ")
    listed, end, rest = numbers.partition("?")
    turned = ", ".join(reversed(listed.split(", ")))
    train[0]["prompt"][0]["content"] = f"{asked}: {turned}{end}{rest}"
    train[0] |= {name: test[0][name] for name in ("reward_model", "data_source")}
