"""The name of a run at wandb: kept beside the run and in its checkpoints, so a curve goes on.

    runs/<run_id>/tracking.json, checkpoints/step_*/trainer/tracking.json   {"wandb_run_id": "..."}

It is the run folder's name, but for a checkpoint that was copied from another run, and for a run
that was deleted at wandb, whose name is then refused for ever.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from rl_core.checkpoints.manifest import RESUME_FOLDER
from rl_core.system.atomic import write_text_atomically

TRACKING = "tracking.json"
UPLOADED = "uploaded.json"
"""In a run's `wandb/`: the last step that the server has."""
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def wandb_run_id(run_folder: Path, checkpoint: Path | None = None) -> str:
    """Returns a run's name at wandb: of its folder, else of the checkpoint that it resumes from."""
    resumed = _read(checkpoint / RESUME_FOLDER / TRACKING) if checkpoint else None
    return _read(run_folder / TRACKING) or resumed or run_folder.name


def keep_wandb_run_id(run_folder: Path, run_id: str) -> None:
    """Writes a run's name at wandb into its folder, from where checkpoints take it."""
    write_text_atomically(run_folder / TRACKING, json.dumps({"wandb_run_id": run_id}) + "\n")


def copy_wandb_run_id(run_folder: Path, checkpoint: Path) -> None:
    """Puts a run's name at wandb, if it has one, into a checkpoint that is being written."""
    run_id = _read(run_folder / TRACKING)
    if run_id is not None:
        folder = checkpoint / RESUME_FOLDER
        folder.mkdir(exist_ok=True)
        (folder / TRACKING).write_text(json.dumps({"wandb_run_id": run_id}) + "\n")


def _read(file: Path) -> str | None:
    try:
        run_id = json.loads(file.read_bytes())["wandb_run_id"]
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return run_id if isinstance(run_id, str) and _RUN_ID.fullmatch(run_id) else None
