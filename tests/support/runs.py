"""A run's settings, and its folder with the record of one that has begun."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder


def run_config(**sections: Any) -> RunConfig:
    return RunConfig.model_validate(sections)


def merged(defaults: dict[str, Any], sections: dict[str, Any]) -> dict[str, Any]:
    """Sections of settings: each has its defaults, and what is given in their place."""
    names = defaults.keys() | sections.keys()
    return {name: defaults.get(name, {}) | sections.get(name, {}) for name in names}


def new_run(root: Path, run_id: str = "r", **sections: Any) -> RunFolder:
    return RunFolder.create(run_config(run_id=run_id, storage={"root": root}, **sections))


def steps_below(root: Path, run_id: str = "*") -> list[int]:
    """Returns the steps whose metrics runs below a storage root have written so far."""
    files = (root / "runs").glob(f"{run_id}/metrics.jsonl")
    return [row["step"] for file in files for row in RunFolder(file.parent).metrics.read()]
