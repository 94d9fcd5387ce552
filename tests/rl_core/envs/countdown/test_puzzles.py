"""Generated puzzles: solvable, unique, all that exist, repeatable; as rows, and judged."""

from collections import Counter
from itertools import combinations_with_replacement
from math import sqrt

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from rl_core.envs.countdown import Countdown
from rl_core.envs.countdown import puzzles as module
from rl_core.envs.countdown.forms import Ints
from rl_core.envs.countdown.puzzles import (
    COUNTDOWN_DATASET,
    countdown_table,
    generate_puzzles,
    solutions_table,
)
from rl_core.envs.countdown.scoring import parse
from rl_core.envs.countdown.solver import solve_range
from tests.support.own_data import tinyzero_row
from tests.support.solving import evaluate, solve


def keys(puzzles: pl.DataFrame) -> set[tuple[tuple[int, ...], int]]:
    return {(tuple(sorted(nums)), target) for nums, target, *_ in puzzles.iter_rows()}


@pytest.mark.parametrize(
    ("size", "options"),
    [(300, {"max_operands": 4, "min_number": 3, "max_number": 40}), (50, {"max_operands": 6})],
)
def test_puzzles_fit_the_settings_and_are_proved(size, options):
    env = Countdown.model_validate({"min_operands": 2} | options)
    puzzles = generate_puzzles(**env.ranges, size=size, seed=1)
    assert len(keys(puzzles)) == len(puzzles) == size
    for row, (nums, target, solution, num_solutions) in enumerate(puzzles.iter_rows()):
        assert all(env.min_number <= number <= env.max_number for number in nums)
        assert 10 <= target <= 99
        assert evaluate(solution) == target
        assert sorted(parse(solution)[0]) == sorted(nums)
        assert row >= 40 or num_solutions == solve(nums, target)[1]
    sizes = range(2, env.max_operands + 1)
    lengths = puzzles["nums"].list.len().to_list()
    assert Counter(lengths) == dict.fromkeys(sizes, size // len(sizes))
    shuffled = sum(nums != sorted(nums) for nums in puzzles["nums"].to_list())
    assert shuffled > size / 2, "numbers are not shown in order"


def test_everything_that_exists_can_be_asked_for_and_not_one_more():
    env = Countdown(min_operands=2, max_operands=3, max_number=4, min_target=5, max_target=12)
    exist = {
        (numbers, target)
        for numbers in [(a, b) for a in range(1, 5) for b in range(a, 5)]
        + [(a, b, c) for a in range(1, 5) for b in range(a, 5) for c in range(b, 5)]
        for target in range(5, 13)
        if solve(numbers, target)[1]
    }
    assert keys(generate_puzzles(**env.ranges, size=len(exist), seed=0)) == exist
    with pytest.raises(ValueError, match=rf"only {len(exist)} exist with 2 to 3 numbers from 1..4"):
        generate_puzzles(**env.ranges, size=len(exist) + 1, seed=0)


def test_a_seed_fixes_the_puzzles():
    env = Countdown(max_operands=3, max_number=20)
    first = generate_puzzles(**env.ranges, size=100, seed=7)
    assert first.equals(generate_puzzles(**env.ranges, size=100, seed=7))
    assert len(keys(first) & keys(generate_puzzles(**env.ranges, size=100, seed=8))) < 20


def test_every_puzzle_is_equally_likely_where_all_are_known():
    """How often a puzzle comes in 200 draws of a fifth of all is binomial, for each alike."""
    env = Countdown(max_operands=3, max_number=6, max_target=30)
    with pytest.raises(ValueError, match=r"only \d+ exist") as caught:
        generate_puzzles(**env.ranges, size=10**6, seed=0)
    total, rounds = int(str(caught.value).split("only ")[1].split()[0]), 200
    seen: Counter[tuple[tuple[int, ...], int]] = Counter()
    for seed in range(rounds):
        seen.update(keys(generate_puzzles(**env.ranges, size=total // 5, seed=seed)))
    share = (total // 5) / total
    everything = keys(generate_puzzles(**env.ranges, size=total, seed=0))
    squares = sum((seen[key] - rounds * share) ** 2 for key in everything)
    assert len(everything) == total
    # A chi-square has mean `total` and variance `2 * total`: chance fails one in 100,000.
    assert abs(squares / (rounds * share * (1 - share)) - total) < 5 * sqrt(2 * total)


def counts(column: Ints) -> Ints:
    return np.bincount(column.ravel(), minlength=100)


def test_a_sample_from_some_sets_of_numbers_is_spread_as_all_puzzles_are():
    """5,722 of 8,855 sets of four are looked at; each gives some five of the puzzles."""
    env = Countdown(min_operands=4, max_number=20)
    sets = np.asarray(list(combinations_with_replacement(range(1, 21), 4)))
    whole = solve_range(sets, low=10, high=99)
    total = len(whole.rows)
    sample = generate_puzzles(**env.ranges, size=30_000, seed=3)
    looked_at = {numbers for numbers, _ in keys(sample)}
    assert 4_000 < len(looked_at) <= 5_722
    targets = counts(whole.targets)[10:] * 30_000 / total
    squares = (counts(sample["target"].to_numpy())[10:] - targets) ** 2 / targets
    assert squares.sum() < 90 + 5 * sqrt(2 * 90)
    numbers = counts(sets[whole.rows])[1:21] * 30_000 / total
    deviations = (counts(sample["nums"].explode().to_numpy())[1:21] - numbers) / np.sqrt(numbers)
    assert (abs(deviations) < 5 * sqrt(30_000 / 5_722)).all(), "rows of one set come together"


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
def test_each_by_hand(row, correct):
    assert judged([row]) == [correct]


def test_splits_and_slices_are_read_right():
    rows: list[Row] = [("9", [9], 9), ("1 + 2", [1, 2], 3), ("2 + 2", [2, 2], 5), ("0", [0], 0)]
    table = solutions_table({"train": as_split(rows).slice(1, 2), "test": as_split(rows[:1])})
    assert table.select(["split", "index", "is_correct"]).to_pylist() == [
        {"split": "train", "index": 1, "is_correct": True},
        {"split": "train", "index": 2, "is_correct": False},
        {"split": "test", "index": 0, "is_correct": True},
    ]


@pytest.mark.parametrize("template", ["base", "qwen-instruct", "chat"])
def test_rows_equal_a_plain_loop(template, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_ROWS", 16)
    puzzles = generate_puzzles(**Countdown(min_operands=2, max_number=12).ranges, size=50, seed=0)
    table = countdown_table(puzzles, split="test", template=template)
    assert table.schema == COUNTDOWN_DATASET
    table.validate(full=True)
    rows = []
    for index, (numbers, target, solution, num_solutions) in enumerate(puzzles.iter_rows()):
        row = tinyzero_row(numbers, target, index, template, split="test")
        row["extra_info"] |= {"num_solutions": num_solutions, "solution": solution}
        rows.append(row)
    assert table.to_pylist() == rows
