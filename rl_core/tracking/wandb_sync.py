"""Sends wandb what it lacks of runs that are on the disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl_core.runs.settings_file import leaves, read_settings
from rl_core.system.network import wandb_url, why_silent
from rl_core.tracking.wandb_run_id import TRACKING
from rl_core.tracking.wandb_tracker import UPLOAD_TIMEOUT_S, upload_run


def wants_wandb(run_folder: Path) -> bool:
    """Says whether a run asked for wandb, in its settings or in an earlier start."""
    asked = dict(leaves(read_settings(run_folder))).get("trainer.logger")
    return (run_folder / TRACKING).exists() or "wandb" in (asked or ())


def sync_runs(
    runs: Sequence[Path], timeout_s: float = UPLOAD_TIMEOUT_S
) -> list[dict[str, str | int]]:
    """Uploads runs one after the other and returns one row each: run, result, steps, note.

    Raises:
        ConnectionError: the server does not answer, so nothing was tried.
    """
    if runs and (why := why_silent(wandb_url())) is not None:
        raise ConnectionError(f"{wandb_url()} does not answer ({why}): nothing was uploaded")
    rows: list[dict[str, str | int]] = []
    for run in runs:
        upload = upload_run(run, timeout_s)
        rows.append(
            {"run": run.name, "result": upload.result, "steps": upload.steps, "note": upload.note}
        )
    return rows
