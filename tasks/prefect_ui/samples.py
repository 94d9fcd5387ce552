"""A few of the latest responses, for the Prefect UI while training goes on."""

from __future__ import annotations

from typing import Any, Final

from rl_core.runs.rollout_log import RolloutLog
from rl_core.system.words import without_middle
from rl_core.tracking.rollout_samples import samples_of_step
from tasks.prefect_ui.artifacts import quoted

_SHOWN: Final = 4
_LONGEST_PROMPT: Final = 1_000
_LONGEST_RESPONSE: Final = 1_500
"""Characters: the beginning and the end of what is longer."""
_GAP: Final = "\n[...]\n"


def latest_samples(rollouts: RolloutLog) -> str | None:
    """Returns responses of the last step as markdown that no text of a model can break out of.

    Args:
        rollouts: of a run, which may be writing them.

    Returns:
        None before the first step.
    """
    rows = samples_of_step(rollouts.folder, most=_SHOWN)
    if not rows:
        return None
    parts = [f"Of step {rows[0]['step']}:", *map(_as_markdown, rows)]
    more = f"countdown-train sql samples_of_a_verdict --run {rollouts.run_id} -p verdict=correct"
    return "\n\n".join([*parts, f"More of them: `{more}`"]) + "\n"


def _as_markdown(row: dict[str, Any]) -> str:
    head = (
        f"### {row['verdict']}: score {row['score']:g}, {row['response_tokens']} tokens, "
        f"{row['finish_reason']}"
    )
    prompt = quoted(without_middle(row["prompt"], _LONGEST_PROMPT, _GAP))
    response = quoted(without_middle(row["response"], _LONGEST_RESPONSE, _GAP))
    return f"{head}\n\nAsked:\n\n{prompt}\n\nAnswered:\n\n{response}"
