"""What Prefect keeps and shows of a flow run: results of its stages, its log, tags to find it by.

A stage's result spares Retry that stage: it is a path, a few numbers or nothing, as JSON in
`PREFECT_RESULTS_LOCAL_STORAGE_PATH`. If one is lost, its stage runs again.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from prefect import Task, get_client, task
from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

from rl_core.checkpoints.store import list_checkpoints
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.system.log_file import OUR_LOGGERS, PREFECTS_RUN_LOGGERS, RedactingFormatter, listening
from rl_core.system.redaction import redacting_errors
from tasks.prefect_ui.artifacts import in_background, unless_away

_P = ParamSpec("_P")
_R = TypeVar("_R")


class _RunLog(APILogHandler):
    """Sends records to the log of the flow or task run that they come from, if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        if TaskRunContext.get() is not None or FlowRunContext.get() is not None:
            super().emit(record)


@contextmanager
def logs_in_ui() -> Iterator[None]:
    """Shows what our loggers log within the block in the UI, from INFO up, without credentials."""
    handler = _RunLog(logging.INFO)
    prefects = {
        other: other.formatter
        for name in PREFECTS_RUN_LOGGERS
        for other in logging.getLogger(name).handlers
        if isinstance(other, APILogHandler)
    }
    for each in (handler, *prefects):
        each.setFormatter(RedactingFormatter("%(message)s"))
    try:
        with listening(handler, OUR_LOGGERS), redacting_errors():
            yield
    finally:
        for other, formatter in prefects.items():
            other.setFormatter(formatter)


def tag_flow_run(config: RunConfig) -> None:
    """Adds preset, env and estimator to the tags of this flow run, in a thread."""
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return
    flow_run = context.flow_run
    tags = {
        *flow_run.tags,
        f"preset:{config.preset}",
        f"env:{config.env.name}",
        f"estimator:{config.algorithm.estimator}",
    }

    def send() -> None:
        with unless_away("the tags"), get_client(sync_client=True) as client:
            client.update_flow_run(flow_run.id, tags=tags)

    in_background(send)


def stage(
    name: str,
    run_name: str | Callable[[dict[str, Any]], str],
    key: Callable[[TaskRunContext, dict[str, Any]], str],
) -> Callable[[Callable[_P, _R]], Task[_P, _R]]:
    """Makes a function a task whose result Prefect keeps under a cache key."""

    def make(function: Callable[_P, _R]) -> Task[_P, _R]:
        return task(
            name=name,
            task_run_name=run_name,  # type: ignore[arg-type]  # a plain function does
            persist_result=True,
            result_serializer="json",
            cache_key_fn=key,
        )(redacting_errors()(function))

    return make


def once_per_flow_run(context: TaskRunContext, inputs: Mapping[str, Any]) -> str:
    """Returns a cache key that a flow run's stage shares only with its retries."""
    owner = context.task_run.flow_run_id or context.task_run.id
    facts = {
        name: value.model_dump(mode="json")
        if isinstance(value, RunConfig)
        else str(value.path if isinstance(value, RunFolder) else value)
        for name, value in inputs.items()
    }
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return f"{context.task.name}-{owner}-{digest[:16]}"


def once_per_training(context: TaskRunContext, inputs: Mapping[str, Any]) -> str:
    """Returns the key of `once_per_flow_run`, but another one if training has continued."""
    metrics = inputs["run"].metrics.path
    trained_at = metrics.stat().st_mtime_ns if metrics.exists() else None
    return once_per_flow_run(context, {**inputs, "trained_at": trained_at})


def is_trained(run: RunFolder) -> bool:
    """Returns whether the last step that a run did still has its checkpoint."""
    steps = run.metrics.last_step()
    return any(checkpoint.step == steps for checkpoint in list_checkpoints(run.path))
