"""A test split of tiny Countdown problems: 2 and i make 2 + i."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.envs.countdown.tables import COUNTDOWN_DATASET


def write_test_split(folder: Path, prompts: Sequence[str]) -> Path:
    """Writes one problem per prompt into a new folder, and returns it."""
    folder.mkdir()
    rows = [
        {
            "nums": [2, i],
            "target": 2 + i,
            "data_source": "countdown",
            "prompt": [{"role": "user", "content": prompt}],
            "ability": "math",
            "reward_model": {
                "style": "rule",
                "ground_truth": {"target": 2 + i, "numbers": [2, i]},
            },
            "extra_info": {"split": "test", "index": i, "num_solutions": 1, "solution": f"2+{i}"},
        }
        for i, prompt in enumerate(prompts)
    ]
    pq.write_table(pa.Table.from_pylist(rows, COUNTDOWN_DATASET), folder / "test.parquet")
    return folder
