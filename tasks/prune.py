"""Prune: deletes checkpoints and rollouts beyond their quotas, with a reason for each decision."""

import logging
from collections.abc import Sequence
from typing import Any, Final

from prefect import task

from rl_core.checkpoints.pruning import prune
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.storage.lease import is_written_elsewhere
from rl_core.storage.mirror import mirrored
from rl_core.storage.object_store import ObjectStore, StoreError
from rl_core.storage.spool import Spool
from rl_core.system.redaction import redacting_errors
from rl_core.system.words import GIB, disk_size
from tasks.prefect_ui.artifacts import create_table_artifact
from tasks.prefect_ui.flow_run import once_per_training, stage

LEFT_ALONE: Final = "left alone"
_logger = logging.getLogger(__name__)


def prune_run(config: RunConfig, run: RunFolder, *, dry_run: bool = False) -> list[dict[str, Any]]:
    """Deletes what need not stay; returns a row per checkpoint and per deleted rollout file."""
    decisions = prune(
        run.path,
        keep_last=config.checkpoints.keep_last,
        quota_bytes=config.checkpoints.quota_bytes,
        min_free_bytes=int(config.storage.min_free_gib * GIB),
        dry_run=dry_run,
    )
    gone = [decision for decision in decisions if not decision.keep]
    size = disk_size(sum(decision.checkpoint.size_bytes for decision in gone))
    deleted = "would be deleted" if dry_run else "deleted"
    _logger.info("%d of %d checkpoints %s, %s", len(gone), len(decisions), deleted, size)
    quota_bytes = config.storage.rollout_quota_bytes
    too_many = f"oldest beyond the quota of {disk_size(quota_bytes)}"
    of_checkpoints = [
        {
            "what": decision.checkpoint.path.name,
            "decision": "kept" if decision.keep else deleted,
            "why": decision.reason,
            "bytes": decision.checkpoint.size_bytes,
            "accuracy": decision.checkpoint.accuracy,
            "created_at": decision.checkpoint.created_at,
        }
        for decision in decisions
    ]
    of_rollouts = [
        {"what": f"rollouts/{file.path.name}", "decision": deleted, "why": too_many}
        | {"bytes": size, "accuracy": None, "created_at": None}
        for file, size in run.rollouts.age_out(quota_bytes, dry_run=dry_run)
    ]
    return of_checkpoints + of_rollouts


def _run_name(parameters: dict[str, Any]) -> str:
    config: RunConfig = parameters["config"]
    return (
        f"prune checkpoints to {disk_size(config.checkpoints.quota_bytes)}, "
        f"rollouts to {disk_size(config.storage.rollout_quota_bytes)}"
    )


@stage("prune", _run_name, once_per_training)
def prune_task(config: RunConfig, run: RunFolder) -> None:
    """Prunes in a flow run; a table artifact says what was kept, deleted and why."""
    rows = prune_run(config, run)
    for row in rows:
        made = (row["created_at"] or "")[:19].replace("T", " ")
        row |= {"bytes": f"{row['bytes']:,}", "created_at": made}
    create_table_artifact(
        rows,
        key="checkpoints",
        description=f"Checkpoints of {run.run_id}: latest, best and a champion stay, and the "
        f"newest {config.checkpoints.keep_last} if all fit into "
        f"{disk_size(config.checkpoints.quota_bytes)}. Rollouts: the newest "
        f"{disk_size(config.storage.rollout_quota_bytes)}.",
    )


def prune_runs(
    runs: Sequence[tuple[RunConfig | str, RunFolder]], *, dry_run: bool
) -> list[dict[str, Any]]:
    """Prunes runs one by one; returns their rows, and one per run that was left alone.

    Left alone are runs in progress, and runs with an error text in place of unreadable settings.
    """
    rows: list[dict[str, Any]] = []
    for config, run in runs:
        try:
            if isinstance(config, str):
                raise ValueError(config)
            if run.read().status == "running":
                raise ValueError("in progress: it prunes itself")
            url = config.storage.url  # perhaps only a copy that a query has downloaded
            if url is not None and is_written_elsewhere(
                ObjectStore(url), run.run_id, Spool(config.storage.root, url).name()
            ):
                raise ValueError(
                    f"written by another machine: prune it there, or bring it here with "
                    f"`countdown-train prune run_id={run.run_id} storage.root={url}`"
                )
            with mirrored(config.storage, run.run_id):
                decisions = prune_run(config, run, dry_run=dry_run)
        except (OSError, ValueError, StoreError) as error:
            _logger.warning("%s was left alone: %s", run.run_id, error)
            decisions = [{"what": "all", "decision": LEFT_ALONE, "why": str(error)}]
        rows += [{"run": run.run_id, **row} for row in decisions]
    return rows


@task(name="prune-runs", task_run_name="prune all runs, dry_run={dry_run}")
@redacting_errors()
def prune_runs_task(
    runs: Sequence[tuple[RunConfig | str, RunFolder]], dry_run: bool
) -> dict[str, Any]:
    """Prunes runs in a flow run; table artifact `pruned` has a row per decision."""
    rows = prune_runs(runs, dry_run=dry_run)
    deleted = [row for row in rows if row["decision"].endswith("deleted")]
    total_bytes = sum(row["bytes"] for row in deleted)
    create_table_artifact(
        rows,
        key="pruned",
        description=f"{len(runs)} runs: {len(deleted)} checkpoints and files of rollouts, "
        f"{disk_size(total_bytes)}, {'would be ' if dry_run else ''}deleted.",
    )
    return {
        "runs": len(runs),
        "left_alone": sum(row["decision"] == LEFT_ALONE for row in rows),
        "deleted": len(deleted),
        "bytes": total_bytes,
    }
