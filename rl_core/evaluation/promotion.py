"""Promotion: a checkpoint becomes champion if it is better on the very same problems."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.checkpoints.champion import (
    Champion,
    Contender,
    PromotedContender,
    champion_file,
    read_champion,
)
from rl_core.checkpoints.manifest import MANIFEST
from rl_core.evaluation.summary import compare
from rl_core.system.atomic import locked, write_text_atomically

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Promotion:
    """Whether a contender became champion, and why."""

    is_champion: bool
    reason: str
    """In one sentence, for log, summary and report."""
    champion: Champion | None


def promote(
    root: Path,
    contender: Contender,
    *,
    env: str,
    problems: str,
    now: str,
    rows: Rows,
    base_rows: Rows,
    champion_rows: Callable[[PromotedContender], Rows | None],
) -> Promotion:
    """Makes a checkpoint champion if it is better, and returns the outcome.

    It must be better than the champion, on the same problems and on no fewer than made that one
    champion. Without a champion, or with its files gone, it must be better than its own base model:
    a model that learned nothing is no champion. One promotion at a time; pruning waits.

    `root` is `storage.root`, `problems` the digest of the test problems, `now` a time in ISO 8601.
    All rows are of one evaluation; `champion_rows` returns None if there are none.
    """
    file = champion_file(root, env, problems)
    checkpoint = root / contender.checkpoint
    with locked(file.parent), locked(checkpoint.parent):
        champion = read_champion(file)
        if not (checkpoint / MANIFEST).is_file():
            return Promotion(False, f"not promoted: {contender.name} is gone", champion)
        rival = champion.current if champion is not None and champion.is_there(root) else None
        if rival is not None and rival.model_digest == contender.model_digest:
            return Promotion(True, f"{rival.name} is the champion already", champion)
        name = "its base model" if rival is None else f"the champion {rival.name}"
        rival_rows = base_rows if rival is None else champion_rows(rival)
        if rival_rows is None:
            return Promotion(
                False, f"not promoted: {name} could not be asked the same problems", champion
            )
        result = compare(rows, rival_rows)
        reason = result.against(name)
        if champion is not None and rival is None:
            reason += f"; the champion {champion.current.name} is gone from the disk"
        if result.verdict != "better":
            return Promotion(False, f"not promoted: {reason}", champion)
        if rival is not None and contender.num_problems < rival.num_problems:
            reason += (
                f", but the champion was chosen on {rival.num_problems} problems: evaluate on at "
                "least as many"
            )
            return Promotion(False, f"not promoted: {reason}", champion)
        promoted_now = PromotedContender(**contender.model_dump(), promoted_at=now, reason=reason)
        promoted = Champion(
            env=env,
            problems=problems,
            current=promoted_now,
            history=(*champion.history, champion.current) if champion else (),
        )
        write_text_atomically(file, promoted.model_dump_json(indent=2) + "\n")
    return Promotion(True, f"promoted: {reason}", promoted)
