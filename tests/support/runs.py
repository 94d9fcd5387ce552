"""A run's folder with the record and the settings of one that has begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder


def new_run(root: Path, run_id: str = "r", **sections: Any) -> RunFolder:
    settings = {"run_id": run_id, "storage": {"root": root}} | sections
    return RunFolder.create(RunConfig.model_validate(settings))
