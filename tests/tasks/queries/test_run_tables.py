import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.runs.rollout_log import RolloutLog
from rl_core.schema import ROLLOUTS
from tasks.queries.sql import run_query


def test_a_query_sees_each_row_once_while_files_are_cut(tmp_path):
    logs = [RolloutLog(tmp_path / "runs" / f"r{i}" / "rollouts", f"r{i}") for i in range(4)]
    for log in logs:
        log.folder.mkdir(parents=True)
        for step in range(1, 13):
            row = {"run_id": log.run_id, "step": step, "prompt_index": 0, "group_id": 0}
            file = log.folder / f"step_{step:06d}.parquet"
            pq.write_table(pa.Table.from_pylist([row] * 3, schema=ROLLOUTS), file)
    code = f"""
from pathlib import Path
from rl_core.runs.rollout_log import RolloutLog
print("ready", flush=True)
for i in range(4):
    log = RolloutLog(Path({str(tmp_path)!r}) / "runs" / f"r{{i}}" / "rollouts", f"r{{i}}")
    log.cut_after(11)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    asked, seen = "select run_id, step, count(*) as num from rollouts group by all", []
    while process.poll() is None or not seen:
        answer = run_query(asked, root=tmp_path)
        assert set(answer["num"]) == {3}
        seen.append(answer.height)
    assert process.returncode == 0
    assert seen == sorted(seen, reverse=True)
    assert set(seen) <= {48, 47, 46, 45, 44}
    assert run_query(asked, root=tmp_path).height == 44
