"""Finished stages: what Retry in the UI need not do again, because Prefect keeps their results.

A result is a path, a few numbers or nothing, kept as JSON where Prefect's setting
`PREFECT_RESULTS_LOCAL_STORAGE_PATH` says (by default `~/.prefect/storage`). Where it is lost, or
could not be kept, the stage runs again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from prefect.context import TaskRunContext

from rl_core.checkpoints.store import list_checkpoints
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder


def once_per_flow_run(context: TaskRunContext, inputs: Mapping[str, Any]) -> str:
    """Returns a cache key that a stage of a flow run has in common with its retries alone."""
    return key_of(context, {name: _plain(value) for name, value in inputs.items()})


def once_per_training(context: TaskRunContext, inputs: Mapping[str, Any]) -> str:
    """Returns a key as `once_per_flow_run` does, which is another one when training has gone on."""
    metrics = inputs["run"].metrics.path
    trained_at = metrics.stat().st_mtime_ns if metrics.exists() else None
    return once_per_flow_run(context, {**inputs, "trained_at": trained_at})


def key_of(context: TaskRunContext, facts: Mapping[str, Any]) -> str:
    """Returns a cache key: the task, its flow run, and a digest of what the result depends on."""
    own = context.task_run.flow_run_id or context.task_run.id
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return f"{context.task.name}-{own}-{digest[:16]}"


def is_trained(run: RunFolder) -> bool:
    """Says whether the last step that a run did still has its checkpoint."""
    steps = run.metrics.last_step()
    return any(checkpoint.step == steps for checkpoint in list_checkpoints(run.path))


def _plain(value: Any) -> Any:
    if isinstance(value, RunConfig):
        return value.model_dump(mode="json")
    return str(value.path if isinstance(value, RunFolder) else value)
