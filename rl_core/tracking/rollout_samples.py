"""A few rollouts of a step, chosen once for wandb, the Prefect UI and `watch`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.runs.rollout_log import step_files
from rl_core.schema import ROLLOUTS
from rl_core.system.atomic import reading
from rl_core.system.words import without_middle

COLUMNS: Final = ("step", "prompt", "response", "answer", "verdict", "score")
"""Of a table at wandb."""
_READ: Final = (*COLUMNS, "response_tokens", "finish_reason", "truth")
_SAMPLES: Final = 8
_MOST_CHARACTERS: Final = 2_000
"""Of a text; the middle of a longer one is left out."""
Row = dict[str, Any]


def samples_of_step(folder: Path, step: int | None = None, *, most: int = _SAMPLES) -> list[Row]:
    """Returns a few rollouts of a step, by default the last; none if none can be read.

    They are the same ones each time, see `in_turns`.
    """
    try:
        with reading(folder):
            files = step_files(folder)
            step = files[-1].last_step if step is None and files else step
            rows = pq.read_table(
                [file.path for file in files if file.last_step >= (step or 0)][:1],
                columns=list(_READ),
                filters=[("step", "=", step)],
                partitioning=None,
                schema=ROLLOUTS,
            )
    except (OSError, ValueError, pa.ArrowException):  # none yet, aged out, or a full disk's half
        return []
    return in_turns(rows.to_pylist(), most)


def sample_table(folder: Path, step: int) -> list[list[Any]]:
    """Returns `COLUMNS` of `samples_of_step`, with texts of moderate length."""
    return [
        [
            without_middle(value, _MOST_CHARACTERS) if isinstance(value, str) else value
            for value in (row[name] for name in COLUMNS)
        ]
        for row in samples_of_step(folder, step)
    ]


def in_turns(rows: Sequence[Row], most: int) -> list[Row]:
    """Returns a few rows, one of each verdict in turn: `correct`, then the most frequent first."""
    counts = Counter(str(row["verdict"]) for row in rows)
    verdicts = sorted(counts, key=lambda verdict: (verdict != "correct", -counts[verdict], verdict))
    seen: Counter[str] = Counter()
    turns = []
    for row in rows:
        verdict = str(row["verdict"])
        turns.append((seen[verdict], verdicts.index(verdict), row))
        seen[verdict] += 1
    return [row for _, _, row in sorted(turns, key=lambda turn: turn[:2])[:most]]
