"""Rescore: stored rollouts get the score of a changed reward, without a model."""

import hashlib
import io
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rl_core.config.run import RunConfig
from rl_core.data.dataset import read_problems
from rl_core.envs.tool_env import ToolEnv
from rl_core.rewards.scoring import Rewards, start_rewards
from rl_core.runs.run_folder import RunFolder
from rl_core.schema import RESCORES
from rl_core.system.atomic import write_bytes_atomically
from rl_core.system.plain_parquet import open_parquet, read_table
from rl_core.types import Problem
from tasks.queries.run_tables import reading_rollouts

_BATCH_ROWS = 8_192
_COLUMNS = ["step", "group_id", "sample_index", "prompt_index", "response"]


def rescore_run(config: RunConfig, run: RunFolder, data: Path, changed: str) -> Path:
    """Scores all rollouts of a run by the reward of `config.env`, and returns the file of scores.

    `changed`: the changed settings, by which SQL finds the scores. Older scores of the same change
    stay only if their rollouts were deleted since. ValueError if a problem is not in the data set.
    """
    if isinstance(config.env, ToolEnv) and not config.env.reward:
        raise ValueError(
            f"env={config.env.name}: its tools cannot be called again: name env.reward"
        )
    problems = {problem.index: problem for problem in read_problems(data / "train.parquet")}
    path = _file_of(run.path / "rescored", changed)
    out = io.BytesIO()
    first_step = None
    with (
        start_rewards(config.env, config.reward) as rewards,
        reading_rollouts([run.path]) as files,
        pq.ParquetWriter(out, RESCORES, compression="zstd") as writer,
    ):
        for file in files:
            with open_parquet(file, below=run.path) as stored:
                for batch in stored.iter_batches(_BATCH_ROWS, columns=_COLUMNS):
                    if first_step is None and batch.num_rows:
                        first_step = batch.column("step")[0].as_py()
                    writer.write_table(_scored(batch, problems, rewards, run.run_id, changed))
        if path.exists():  # keeps the scores of rollouts that the quota has deleted
            older = read_table(path, RESCORES, below=run.path)
            if first_step is not None:
                older = older.filter(pc.field("step") < first_step)
            writer.write_table(older)
    write_bytes_atomically(path, out.getvalue())
    return path


def _file_of(folder: Path, changed: str) -> Path:
    """Returns the file of a change; no two changes have the same file."""
    name = re.sub(r"[^A-Za-z0-9.=_-]+", "-", changed)
    path = folder / f"{name}.parquet"
    first = read_table(path, RESCORES)["changed"][:1] if path.exists() else []
    if any(change.as_py() != changed for change in first):
        digest = hashlib.sha256(changed.encode()).hexdigest()[:8]
        path = folder / f"{name}-{digest}.parquet"
    return path


def _scored(
    batch: pa.RecordBatch, problems: dict[int, Problem], rewards: Rewards, run_id: str, changed: str
) -> pa.Table:
    rows = batch.to_pylist()
    for row in (row for row in rows if row["prompt_index"] not in problems):
        raise ValueError(
            f"problem {row['prompt_index']} of step {row['step']} is not in the run's data set any "
            "more: make it again with countdown-train generate"
        )
    pending = [rewards.submit(r["response"] or "", problems[r["prompt_index"]]) for r in rows]
    scored = [future.result() for future in pending]
    return pa.table(
        {
            "run_id": [run_id] * len(rows),
            "changed": [changed] * len(rows),
            **{name: batch.column(name) for name in ("step", "group_id", "sample_index")},
            "verdict": [one.verdict for one in scored],
            "score": [one.score for one in scored],
        },
        schema=RESCORES,
    )
