"""Puzzles as rows; stored solutions judged as the reward would."""

import pyarrow as pa
import pytest

from rl_core.envs.countdown import CountdownConfig, Template, render_messages
from rl_core.envs.countdown import puzzles as module
from rl_core.envs.countdown.puzzles import (
    COUNTDOWN_DATASET,
    countdown_table,
    generate_puzzles,
    solutions_table,
)

Row = tuple[str | None, list[int | None] | None, int | None]


def as_split(rows: list[Row]) -> pa.Table:
    """The columns that are looked at."""
    made = [
        {"nums": nums, "target": target, "extra_info": {"index": i, "solution": text}}
        for i, (text, nums, target) in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, schema=COUNTDOWN_DATASET)


def judged(rows: list[Row]) -> list[bool]:
    verdicts: list[bool] = solutions_table({"train": as_split(rows)})["is_correct"].to_pylist()
    return verdicts


@pytest.mark.parametrize(
    ("row", "correct"),
    [
        (("1 + 2 * 3", [3, 2, 1], 7), True),
        (("1 + 2 * 3", [3, 2, 1], 9), False),
        (("8 / (3 - 8 / 3)", [3, 3, 8, 8], 24), True),
        (("7 + 5 / (3 / (2 - 2))", [7, 5, 3, 2, 2], 7), False),  # 5 / (3 / 0) is no 0
        (("999 * 999 * 999 * 999 * 999 * 999", [999] * 6, 999**6), True),
        (("9 + 9 - 07", [9, 9, 7], 11), False),
        (("1 - 2", [2, 1], -1), True),
        (("1 + 2<answer>1 + 2", [1, 2], 3), False),
        (("5 + 5</answer>", [5, 5], 10), False),
        (("n + 5", [5], 5), False),
        (("4294967296 * 4294967296 + 5", [2**32, 2**32, 5], 5), False),  # 5 in 64 bits
        (("", [1], 1), False),
        (("1", [None, 1], 1), False),
        ((None, [1], 1), False),
        (("1", None, 1), False),
        (("1", [1], None), False),
    ],
)
def test_each_by_hand(row: Row, correct: bool) -> None:
    assert judged([row]) == [correct]


def test_splits_and_slices_are_read_right() -> None:
    rows: list[Row] = [("9", [9], 9), ("1 + 2", [1, 2], 3), ("2 + 2", [2, 2], 5), ("0", [0], 0)]
    table = solutions_table({"train": as_split(rows).slice(1, 2), "test": as_split(rows[:1])})
    assert table.select(["split", "index", "is_correct"]).to_pylist() == [
        {"split": "train", "index": 1, "is_correct": True},
        {"split": "train", "index": 2, "is_correct": False},
        {"split": "test", "index": 0, "is_correct": True},
    ]


@pytest.mark.parametrize("template", ["base", "qwen-instruct", "chat"])
def test_rows_equal_a_plain_loop(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ROWS", 16)
    puzzles = generate_puzzles(CountdownConfig(min_operands=2, max_number=12), size=50, seed=0)
    table = countdown_table(puzzles, split="test", template=template)
    assert table.schema == COUNTDOWN_DATASET
    table.validate(full=True)
    assert table.to_pylist() == [
        {
            "nums": numbers,
            "target": target,
            "data_source": "countdown",
            "prompt": render_messages(template, numbers, target),
            "ability": "math",
            "reward_model": {
                "style": "rule",
                "ground_truth": {"target": target, "numbers": numbers},
            },
            "extra_info": {
                "split": "test",
                "index": index,
                "num_solutions": num_solutions,
                "solution": solution,
            },
        }
        for index, (numbers, target, solution, num_solutions) in enumerate(puzzles.iter_rows())
    ]
