"""What a Prefect server that is started in this folder forgets: old events and flow runs."""

import os
from pathlib import Path

from tests.support.programs import python

ROOT = Path(__file__).parents[2]
PROGRAM = """
from prefect.settings import get_current_settings
vacuum = get_current_settings().server.services.db_vacuum
print(sorted(vacuum.enabled_vacuum_types), vacuum.retention_period.days)
print(vacuum.event_retention_overrides["prefect.flow-run.heartbeat"].days)
"""


def test_old_heartbeats_events_and_flow_runs_go(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    done = python(PROGRAM, cwd=ROOT, env=environment, more={"PREFECT_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2:] == ["['events', 'flow_runs', 'orphans'] 90", "1"]
