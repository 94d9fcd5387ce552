"""A few rollouts of a step, small enough to be shown anywhere: read from the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.runs.rollout_log import rollout_files
from rl_core.system.atomic import reading
from rl_core.system.words import without_middle

COLUMNS: Final = ("step", "prompt", "response", "answer", "verdict", "score")
_SAMPLES: Final = 8
_MOST_CHARACTERS: Final = 2_000
"""Of a text; the middle of a longer one is left out."""


def samples_of_step(folder: Path, step: int) -> list[list[Any]]:
    """Returns up to 8 rollouts of a step, evenly spread over its rows: `COLUMNS` of each.

    The same step gives the same samples. Without rollouts of it that can be read, there are none.

    Args:
        folder: a run's `rollouts/`.
        step: that learned from them.
    """
    try:
        with reading(folder):
            files = [file for file in rollout_files(folder) if file.first <= step <= file.last]
            rows = pq.read_table(
                [file.path for file in files],
                columns=list(COLUMNS),
                filters=[("step", "=", step)],
                partitioning=None,
            )
    except (OSError, ValueError, pa.ArrowException):  # none yet, aged out, or a full disk's half
        return []
    chosen = np.unique(np.linspace(0, rows.num_rows - 1, _SAMPLES, dtype=int))
    taken = rows.take(chosen) if rows.num_rows else rows
    return [
        [
            without_middle(value, _MOST_CHARACTERS) if isinstance(value, str) else value
            for value in (row[name] for name in COLUMNS)
        ]
        for row in taken.to_pylist()
    ]
