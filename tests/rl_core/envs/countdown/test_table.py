"""Puzzles as rows: every column, of every template, over the border of a chunk."""

from __future__ import annotations

import pytest

from rl_core.envs.countdown import CountdownConfig, Template, render_messages
from rl_core.envs.countdown import tables as module
from rl_core.envs.countdown.puzzles import generate_puzzles
from rl_core.envs.countdown.tables import COUNTDOWN_DATASET, countdown_table


@pytest.mark.parametrize("template", ["base", "qwen-instruct", "chat"])
def test_rows_equal_a_plain_loop(template: Template, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_ROWS", 16)
    puzzles = generate_puzzles(CountdownConfig(min_operands=2, max_number=12), size=50, seed=0)
    table = countdown_table(puzzles, split="test", template=template)
    assert table.schema == COUNTDOWN_DATASET
    table.validate(full=True)
    expected = []
    for index in range(50):
        numbers = [number for number in puzzles.numbers[index].tolist() if number]
        target = int(puzzles.targets[index])
        expected.append(
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
                    "num_solutions": int(puzzles.num_solutions[index]),
                    "solution": puzzles.solutions[index],
                },
            }
        )
    assert table.to_pylist() == expected
