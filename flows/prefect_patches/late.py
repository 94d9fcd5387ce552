"""Has a Prefect server say why a flow run is late: each worker is busy, or none is there."""

from __future__ import annotations

from typing import Any, Final

_SHOWN: Final = 3


def say_why_late() -> None:
    """Adds a message to the state Late, which Prefect leaves without one."""
    import prefect.server.models  # noqa: F401  # first: it and the modules below import each other
    from prefect.server.orchestration.core_policy import MarkLateRunsPolicy
    from prefect.server.orchestration.rules import FlowRunUniversalTransform
    from prefect.server.services import late_runs

    class SayWhyLate(FlowRunUniversalTransform):
        async def before_transition(self, context: Any) -> None:
            late = context.proposed_state
            if late is not None and late.name == "Late" and context.run.work_queue_id is not None:
                late.message = await _why(context.session, context.run.work_queue_id)

    class Policy(MarkLateRunsPolicy):
        @staticmethod
        def priority() -> list[Any]:
            return [*MarkLateRunsPolicy.priority(), SayWhyLate]

    setattr(late_runs, "MarkLateRunsPolicy", Policy)  # noqa: B010  # mypy: a type


async def _why(session: Any, work_queue_id: Any) -> str:
    import sqlalchemy as sa
    from prefect.server.database import provide_database_interface
    from prefect.server.schemas.states import StateType
    from prefect.server.schemas.statuses import WorkerStatus

    db = provide_database_interface()
    queue = await session.get(db.WorkQueue, work_queue_id)
    pool = await session.get(db.WorkPool, queue.work_pool_id)
    there = sa.select(db.Worker.name).where(
        db.Worker.work_pool_id == pool.id, db.Worker.status == WorkerStatus.ONLINE
    )
    workers = (await session.execute(there)).scalars().all()
    start = f"`prefect worker start --pool {pool.name} --type {pool.type} --limit 1`"
    if not workers:
        return f"No worker was there when it was due: `countdown-train serve` or {start}."
    of_pool = sa.select(db.WorkQueue.id).where(db.WorkQueue.work_pool_id == pool.id)
    busy = sa.select(db.FlowRun.name).where(
        db.FlowRun.work_queue_id.in_(of_pool),
        db.FlowRun.state_type.in_((StateType.PENDING, StateType.RUNNING)),
    )
    names = (await session.execute(busy.limit(_SHOWN))).scalars().all()
    if not names:
        return "A worker is there and takes it within seconds."
    return f"It waits for {', '.join(names)}: each worker does one run at a time. {start} adds one."
