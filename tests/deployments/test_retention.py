"""What a Prefect server that is started in this folder forgets: old events and flow runs."""

import json
import os
from pathlib import Path

import pytest

from tests.support.programs import python

ROOT = Path(__file__).parents[2]
PROGRAM = """
import asyncio, json
from datetime import timedelta
from uuid import uuid4
import sqlalchemy as sa
from prefect.server.database import provide_database_interface
from prefect.server.schemas.states import StateType
from prefect.server.services import db_vacuum
from prefect.settings import get_current_settings
from prefect.types._datetime import now

db = provide_database_interface()

def event(name, days):
    return dict(id=uuid4(), event=name, occurred=now("UTC") - timedelta(days=days), payload={},
        resource={"prefect.resource.id": "x"}, resource_id="x", related=[],
        related_resource_ids=[], received=now("UTC"), recorded=now("UTC"))

async def main():
    await db.create_db()
    async with db.session_context(begin_transaction=True) as session:
        flow = db.Flow(name="flow")
        session.add(flow)
        await session.flush()
        for days in (10, 100):
            run = db.FlowRun(flow_id=flow.id, name=f"{days} days", state_type=StateType.COMPLETED,
                state_name="Completed", end_time=now("UTC") - timedelta(days=days))
            session.add(run)
            await session.flush()
            session.add(db.Log(name="x", level=20, message=f"{days} days", flow_run_id=run.id,
                timestamp=now("UTC")))
            session.add(db.Artifact(key="x", data=f"{days} days", flow_run_id=run.id))
        events = [("prefect.flow-run.heartbeat", 0.5), ("prefect.flow-run.heartbeat", 2),
            ("prefect.flow-run.Completed", 2), ("prefect.flow-run.Completed", 8)]
        for name, days in events:
            await session.execute(sa.insert(db.Event).values(**event(name, days)))
    enabled = get_current_settings().server.services.db_vacuum.enabled_vacuum_types
    if "flow_runs" in enabled:
        await db_vacuum.vacuum_old_flow_runs(db=db)
        await db_vacuum.vacuum_orphaned_logs(db=db)
        await db_vacuum.vacuum_orphaned_artifacts(db=db)
    if "events" in enabled:
        await db_vacuum.vacuum_events_with_retention_overrides(db=db)
        await db_vacuum.vacuum_old_events(db=db)
    async with db.session_context() as session:
        kept = [list((await session.execute(sa.select(column).order_by(column))).scalars())
            for column in (db.FlowRun.name, db.Log.message, db.Artifact.data, db.Event.event)]
    print(json.dumps(kept))

asyncio.run(main())
"""


@pytest.mark.slow
def test_old_heartbeats_events_and_flow_runs_go_and_young_ones_stay(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    done = python(PROGRAM, cwd=ROOT, env=environment, more={"PREFECT_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr[-2000:]
    flow_runs, logs, artifacts, events = json.loads(done.stdout.splitlines()[-1])
    assert flow_runs == logs == artifacts == ["10 days"]
    assert events == ["prefect.flow-run.Completed", "prefect.flow-run.heartbeat"]
