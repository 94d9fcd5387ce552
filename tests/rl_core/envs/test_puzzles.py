"""Generated puzzles: solvable, unique, all that exist when all are asked for, and repeatable."""

from __future__ import annotations

from collections import Counter

import pytest

from rl_core.config import CountdownConfig
from rl_core.envs.arithmetic import evaluate, parse
from rl_core.envs.puzzles import Puzzle, generate_puzzles
from rl_core.envs.solver import solve


def keys(puzzles: list[Puzzle]) -> set[tuple[tuple[int, ...], int]]:
    return {(tuple(sorted(puzzle.numbers)), puzzle.target) for puzzle in puzzles}


def test_puzzles_fit_the_settings_and_are_proved() -> None:
    env = CountdownConfig(min_operands=2, max_operands=4, min_number=3, max_number=40)
    puzzles = generate_puzzles(env, size=300, seed=1)
    assert len(keys(puzzles)) == len(puzzles) == 300
    for puzzle in puzzles:
        assert all(3 <= number <= 40 for number in puzzle.numbers)
        assert 10 <= puzzle.target <= 99
        assert evaluate(puzzle.solution) == puzzle.target
        assert sorted(parse(puzzle.solution).numbers) == sorted(puzzle.numbers)
    for puzzle in puzzles[:40]:
        assert puzzle.num_solutions == solve(puzzle.numbers, puzzle.target)[1]
    assert Counter(len(puzzle.numbers) for puzzle in puzzles) == {2: 100, 3: 100, 4: 100}
    shuffled = sum(list(puzzle.numbers) != sorted(puzzle.numbers) for puzzle in puzzles)
    assert shuffled > 150, "numbers are not shown in order"


def test_everything_that_exists_can_be_asked_for_and_not_one_more() -> None:
    env = CountdownConfig(min_operands=2, max_operands=3, max_number=4, min_target=5, max_target=12)
    exist = {
        (numbers, target)
        for numbers in [(a, b) for a in range(1, 5) for b in range(a, 5)]
        + [(a, b, c) for a in range(1, 5) for b in range(a, 5) for c in range(b, 5)]
        for target in range(5, 13)
        if solve(numbers, target)[1]
    }
    assert keys(generate_puzzles(env, size=len(exist), seed=0)) == exist
    with pytest.raises(ValueError, match=rf"only {len(exist)} exist with 2 to 3 numbers from 1..4"):
        generate_puzzles(env, size=len(exist) + 1, seed=0)


def test_twelve_thousand_puzzles_of_three_numbers_up_to_twenty_exist() -> None:
    env = CountdownConfig(max_operands=3, max_number=20)
    with pytest.raises(ValueError, match="20512 puzzles asked, but only 12166 exist"):
        generate_puzzles(env, size=20_512, seed=0)


def test_a_seed_fixes_the_puzzles() -> None:
    env = CountdownConfig(max_operands=3, max_number=20)
    first = generate_puzzles(env, size=100, seed=7)
    assert first == generate_puzzles(env, size=100, seed=7)
    assert len(keys(first) & keys(generate_puzzles(env, size=100, seed=8))) < 20


def test_targets_are_spread_and_easy_ones_do_not_crowd_out() -> None:
    """A uniform draw from all puzzles: shares of the sample follow those of the whole."""
    env = CountdownConfig(max_operands=3, max_number=10, max_target=30)
    whole = generate_puzzles(env, size=800, seed=0)
    sample = generate_puzzles(env, size=400, seed=3)
    share = sum(puzzle.target <= 20 for puzzle in whole) / 800
    assert abs(sum(puzzle.target <= 20 for puzzle in sample) / 400 - share) < 0.08
