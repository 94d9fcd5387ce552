"""Ways to break a sound data set, a rule at a time, and the checks that must say so."""

from collections.abc import Callable
from typing import Any

from rl_core.envs.countdown import render_messages
from rl_core.envs.gsm8k import Gsm8kConfig
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


def restate(row: dict[str, Any], **changes: Any) -> None:
    """Changes a problem everywhere it is written, so that it stays one sound problem."""
    row.update(changes)
    row["prompt"] = render_messages("base", row["nums"], row["target"])
    row["reward_model"]["ground_truth"] = {"target": row["target"], "numbers": row["nums"]}


def solved(row: dict[str, Any], nums: list[int], target: int, solution: str) -> None:
    restate(row, nums=nums, target=target)
    row["extra_info"] |= {"solution": solution, "num_solutions": max(1, solve(nums, target)[1])}


@breaks("countdown", countdown_number_range=2)
def numbers_out_of_range(train: Rows, test: Rows) -> None:
    solved(train[0], [21, 5, 1], 25, "21 + 5 - 1")
    solved(test[0], [0, 5, 8], 40, "5 * 8 + 0")


@breaks("countdown", countdown_operand_count=2)
def too_few_and_too_many_numbers(train: Rows, test: Rows) -> None:
    solved(train[1], [20, 5], 25, "20 + 5")
    solved(test[1], [20, 5, 1, 1], 25, "20 + 5 * 1 * 1")


@breaks("countdown", countdown_target_range=2)
def targets_out_of_range(train: Rows, test: Rows) -> None:
    solved(train[2], [20, 5, 1], 100, "20 * 5 * 1")
    solved(test[2], [5, 3, 1], 9, "5 + 3 + 1")


@breaks("countdown", countdown_unique=1)
def the_same_problem_twice(train: Rows, _: Rows) -> None:
    twin = train[3]
    solved(train[4], twin["nums"][::-1], twin["target"], twin["extra_info"]["solution"])


@breaks("countdown", countdown_splits_disjoint=1)
def a_training_problem_in_test(train: Rows, test: Rows) -> None:
    twin = train[3]
    turned = twin["nums"][1:] + twin["nums"][:1]
    solved(test[4], turned, twin["target"], twin["extra_info"]["solution"])


@breaks("countdown", countdown_ground_truth=2)
def the_truth_of_another_problem(train: Rows, test: Rows) -> None:
    train[5]["reward_model"]["ground_truth"]["target"] = 98
    test[5]["reward_model"]["ground_truth"]["numbers"] = [1, 2, 3]


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


@breaks("countdown", countdown_solution=1)
def one_that_cannot_be_solved(train: Rows, test: Rows) -> None:
    test[0]["extra_info"]["num_solutions"] = 0


@breaks("countdown", row_count=1)
def too_few_rows(train: Rows, test: Rows) -> None:
    train.pop()


@breaks("countdown", splits_not_empty=1)
def no_rows(_: Rows, test: Rows) -> None:
    test.clear()


@breaks("countdown", "gsm8k", labels=3)
def other_labels(train: Rows, test: Rows) -> None:
    train[0]["data_source"] = "mine"
    train[1]["ability"] = "code"
    test[0]["reward_model"]["style"] = "model"


@breaks("countdown", index_gapless=2)
def indices_with_gaps(train: Rows, test: Rows) -> None:
    train[-1]["extra_info"]["index"] = len(train)  # one past the end
    test[0]["extra_info"]["index"] = 1  # twice, so that 0 is missing


@breaks("countdown", split_label=2)
def the_other_split(train: Rows, test: Rows) -> None:
    train[0]["extra_info"]["split"] = "test"
    test[0]["extra_info"]["split"] = "train"


@breaks(
    "countdown",
    countdown_no_nulls=5,
    countdown_ground_truth=2,
    labels=2,
    countdown_prompt=2,
    countdown_solution=2,
)
def nulls_in_countdown(train: Rows, test: Rows) -> None:
    train[0]["nums"][0] = None
    train[1]["extra_info"]["solution"] = None
    train[2]["ability"] = None
    test[0]["reward_model"] = None
    test[1]["prompt"][0]["content"] = None


@breaks("gsm8k", text_no_nulls=3, gsm8k_ground_truth=1, labels=1, gsm8k_prompt=1)
def nulls_in_gsm8k(train: Rows, test: Rows) -> None:
    train[0]["prompt"][0]["content"] = None
    train[1]["extra_info"]["solution"] = None
    test[0]["data_source"] = None


@breaks("gsm8k", gsm8k_ground_truth=2)
def other_truths(train: Rows, test: Rows) -> None:
    train[0]["reward_model"]["ground_truth"] = "many"
    train[1]["reward_model"]["ground_truth"] = "12"


@breaks("gsm8k", gsm8k_prompt=3)
def other_word_problems(train: Rows, test: Rows) -> None:
    test[0]["prompt"][0]["content"] = "Half?"
    train[0]["prompt"] *= 2
    train[1]["prompt"] = Gsm8kConfig().render(" ")


@breaks("gsm8k", text_unique=1)
def the_same_question_twice(train: Rows, test: Rows) -> None:
    train[1]["prompt"] = train[0]["prompt"]


@breaks("gsm8k", text_splits_disjoint=1)
def a_training_question_in_test(train: Rows, test: Rows) -> None:
    test[0]["prompt"] = train[0]["prompt"]


@breaks("custom", text_unique=1)
def other_white_space(train: Rows, test: Rows) -> None:
    train[1]["prompt"][0]["content"] = train[0]["prompt"][0]["content"].replace(" ", "\n ")


@breaks("custom", "reasoning_gym", text_splits_disjoint=1)
def a_training_prompt_in_test(train: Rows, test: Rows) -> None:
    test[0]["prompt"][0]["content"] = "  " + train[0]["prompt"][0]["content"]


@breaks("custom", text_prompt=2)
def silent_prompts(train: Rows, test: Rows) -> None:
    train[0]["prompt"][0]["content"] = " \n"
    test[0]["prompt"] = []


@breaks("custom", text_no_nulls=2, text_prompt=1)
def nothing_told(train: Rows, test: Rows) -> None:
    train[0]["prompt"][0]["content"] = None
    test[0]["reward_model"]["style"] = None


@breaks("custom", custom_ground_truth=2)
def truths_that_no_text_equals(train: Rows, test: Rows) -> None:
    train[0]["reward_model"] = {"style": "json", "ground_truth": '{"city": "Paris"}'}
    train[1]["reward_model"]["ground_truth"] = " "
    test[0]["reward_model"] = {"style": "json", "ground_truth": "42"}


@breaks("reasoning_gym", reasoning_gym_truth=3)
def one_of_the_wrong_task(train: Rows, test: Rows) -> None:
    train[0]["data_source"] = "reasoning_gym/lcm"
    test[0]["reward_model"]["ground_truth"] = '{"task": "gcd"}'
    test[1]["reward_model"]["style"] = "rule"


@breaks("number_questions", "reasoning_gym", row_count=1)
def a_row_less(train: Rows, _: Rows) -> None:
    train.pop()


@breaks("number_questions", number_questions_truth=3)
def other_answers(train: Rows, test: Rows) -> None:
    train[0]["reward_model"]["ground_truth"] = "100"
    train[1]["data_source"] = "number_questions/median"
    test[0]["prompt"][0]["content"] = "Which of these numbers is the largest: 3?"


@breaks("number_questions", number_questions_splits=1)
def a_list_of_the_test_split_turned_round(train: Rows, test: Rows) -> None:
    asked, _, numbers = test[0]["prompt"][0]["content"].partition(": ")
    listed, end, rest = numbers.partition("?")
    turned = ", ".join(reversed(listed.split(", ")))
    train[0]["prompt"][0]["content"] = f"{asked}: {turned}{end}{rest}"
    train[0] |= {name: test[0][name] for name in ("reward_model", "data_source")}
