"""A run's folder with the record and the settings of one that has begun."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder


def new_run(root: Path, run_id: str = "r", **sections: Any) -> RunFolder:
    settings = {"run_id": run_id, "storage": {"root": root}} | sections
    return RunFolder.create(RunConfig.model_validate(settings))


def short(overrides: Iterable[str], **trainer: int) -> list[str]:
    """Returns settings with only these of `trainer`, and with the engine that starts soonest."""
    others = (text for text in overrides if not text.startswith("trainer."))
    return [*others, *(f"trainer.{name}={n}" for name, n in trainer.items()), "rollout.engine=hf"]


def steps_below(root: Path, run_id: str = "*") -> list[int]:
    """Returns the steps whose metrics runs below a storage root have written so far."""
    files = (root / "runs").glob(f"{run_id}/metrics.jsonl")
    return [row["step"] for file in files for row in RunFolder(file.parent).metrics.read()]
