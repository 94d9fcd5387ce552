"""The chain of stages, as Prefect draws it: each task run behind the one before it.

Prefect draws an edge where the result of one task is handed to another. What our stages leave is on
the disk, and they hand on no more than a path or a number.
"""

from __future__ import annotations

from typing import ParamSpec, TypeVar, cast
from uuid import UUID, uuid4

from prefect import Task
from prefect.client.schemas.objects import RunInput, TaskRunResult
from prefect.task_engine import run_task
from prefect.utilities.callables import get_call_parameters

_P = ParamSpec("_P")
_Result = TypeVar("_Result")


class Chain:
    """Calls tasks as a plain call does; each depends on the one that it called before."""

    def __init__(self) -> None:
        self._before: UUID | None = None

    def __call__(self, task: Task[_P, _Result], *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        """Returns the task's result."""
        before: set[RunInput] = {TaskRunResult(id=self._before)} if self._before else set()
        self._before = uuid4()
        parameters = get_call_parameters(task.fn, args, kwargs)
        result = run_task(
            task,
            task_run_id=self._before,
            parameters=parameters,
            # Prefect knows dependencies of parameters alone; the first may have a further one.
            dependencies={next(iter(parameters)): before},
        )
        return cast("_Result", result)
