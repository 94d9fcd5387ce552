"""A few of the latest responses, for the Prefect UI while training goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pyarrow.parquet as pq

from rl_core.runs.rollout_log import RolloutLog, rollout_files
from rl_core.system.atomic import reading
from rl_core.system.words import without_middle
from tasks.prefect_ui.artifacts import quoted

_SHOWN: Final = 4
_LONGEST_PROMPT: Final = 1_000
_LONGEST_RESPONSE: Final = 1_500
"""Characters: the beginning and the end of what is longer."""
_GAP: Final = "\n[...]\n"
_COLUMNS: Final = ("verdict", "score", "response_tokens", "finish_reason", "prompt", "response")


def latest_samples(rollouts: RolloutLog) -> str | None:
    """Returns responses of the last step as markdown that no text of a model can break out of.

    One of each verdict in turn, `correct` first and then the most frequent.

    Args:
        rollouts: of a run, which may be writing them.

    Returns:
        None before the first step.
    """
    files = rollout_files(rollouts.folder)
    if not files:
        return None
    with reading(rollouts.folder):
        newest = rollout_files(rollouts.folder)[-1]
        table = pq.read_table(
            newest.path, columns=list(_COLUMNS), filters=[("step", "==", newest.last)]
        )
    rows = in_turns(table.to_pylist(), _SHOWN)
    parts = [f"Of step {newest.last}:", *map(_as_markdown, rows)]
    more = f"countdown-train sql samples_of_a_verdict --run {rollouts.run_id} -p verdict=correct"
    return "\n\n".join([*parts, f"More of them: `{more}`"]) + "\n"


def in_turns(rows: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Returns some rows: one of each verdict in turn, `correct` first and then the most frequent.

    Args:
        rows: with a `verdict` each; of a verdict the first are taken.
        most: to be returned.
    """
    counts = Counter(str(row["verdict"]) for row in rows)
    verdicts = sorted(counts, key=lambda verdict: (verdict != "correct", -counts[verdict], verdict))
    seen: Counter[str] = Counter()
    turns = []
    for row in rows:
        verdict = str(row["verdict"])
        turns.append((seen[verdict], verdicts.index(verdict), row))
        seen[verdict] += 1
    return [row for _, _, row in sorted(turns, key=lambda turn: turn[:2])[:most]]


def _as_markdown(row: dict[str, Any]) -> str:
    head = (
        f"### {row['verdict']}: score {row['score']:g}, {row['response_tokens']} tokens, "
        f"{row['finish_reason']}"
    )
    prompt = quoted(without_middle(row["prompt"], _LONGEST_PROMPT, _GAP))
    response = quoted(without_middle(row["response"], _LONGEST_RESPONSE, _GAP))
    return f"{head}\n\nAsked:\n\n{prompt}\n\nAnswered:\n\n{response}"
