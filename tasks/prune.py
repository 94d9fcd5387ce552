"""Prune: a run's checkpoints against its quota, with a reason for each."""

from __future__ import annotations

import logging
from typing import Any

from prefect import task
from prefect.artifacts import create_table_artifact

from rl_core.checkpoints import PruningDecision, prune
from rl_core.config import RunConfig
from rl_core.tracking import RunFolder

_logger = logging.getLogger(__name__)


def prune_run(config: RunConfig, run: RunFolder, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Deletes the checkpoints that need not stay and returns a row per checkpoint, newest first.

    Args:
        config: `checkpoints` says how many stay and how many bytes they may take.
        run: the run.
        dry_run: only says what would be done.
    """
    decisions = prune(
        run.path,
        keep_last=config.checkpoints.keep_last,
        quota_bytes=config.checkpoints.quota_bytes,
        dry_run=dry_run,
    )
    gone = [decision for decision in decisions if not decision.keep]
    _logger.info(
        "%d of %d checkpoints %s, %.3f GB",
        len(gone),
        len(decisions),
        "would be deleted" if dry_run else "deleted",
        sum(decision.checkpoint.size_bytes for decision in gone) / 1e9,
    )
    return [_row(decision) for decision in decisions]


@task(name="prune", task_run_name="prune checkpoints")
def prune_task(config: RunConfig, run: RunFolder) -> None:
    """Prunes in a flow run; a table artifact says what was kept, deleted and why."""
    create_table_artifact(
        prune_run(config, run),
        key="checkpoints",
        description=(
            f"Checkpoints of {run.run_id}: latest, best and the newest "
            f"{config.checkpoints.keep_last} stay within "
            f"{config.checkpoints.quota_bytes / 1e9:.3g} GB."
        ),
    )


def _row(decision: PruningDecision) -> dict[str, Any]:
    checkpoint = decision.checkpoint
    return {
        "checkpoint": checkpoint.path.name,
        "decision": "kept" if decision.keep else "deleted",
        "why": decision.reason,
        "bytes": checkpoint.size_bytes,
        "accuracy": checkpoint.accuracy,
        "created_at": checkpoint.created_at,
    }
