"""A run's settings, and its folder with the record of one that has begun."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.schema import ROLLOUTS


def run_config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(sections)


def merged(defaults: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """Sections of settings: each has its defaults, and what is given in their place."""
    names = defaults.keys() | sections.keys()
    return {name: defaults.get(name, {}) | sections.get(name, {}) for name in names}


def new_run(root: Path, run_id: str = "r", **sections: Any) -> RunFolder:
    return RunFolder.create(run_config(run_id=run_id, storage={"root": root}, **sections))


def write_rollouts(run: Path, rows: Iterable[dict[str, Any]], step: int = 1) -> Path:
    """Writes a step's rollouts: of each row what is not the same in all of them."""
    same = {"run_id": run.name, "step": step, "group_id": 0, "sample_index": 0, "score": 0.0}
    same |= {"generated_at": datetime(2026, 11, 21, tzinfo=UTC)}
    file = run / "rollouts" / f"step_{step:06d}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([same | row for row in rows], schema=ROLLOUTS), file)
    return file


def short(overrides: Iterable[str], **trainer: int) -> list[str]:
    """Returns settings with only these of `trainer`, and with the engine that starts soonest."""
    others = (text for text in overrides if not text.startswith("trainer."))
    return [*others, *(f"trainer.{name}={n}" for name, n in trainer.items()), "rollout.engine=hf"]


def steps_below(root: Path, run_id: str = "*") -> list[int]:
    """Returns the steps whose metrics runs below a storage root have written so far."""
    files = (root / "runs").glob(f"{run_id}/metrics.jsonl")
    return [row["step"] for file in files for row in RunFolder(file.parent).metrics.read()]
