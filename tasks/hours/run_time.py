"""What a run's steps take and how much is left: planned at first, measured from the fifth on."""

from __future__ import annotations

from pathlib import Path

from rl_core.config.run import RunConfig
from rl_core.data.readers import count_rows
from rl_core.data.sampling import total_steps
from rl_core.resources.cost import measured_step, seconds_in_words, time_left
from rl_core.runs.run_folder import IMPORTED, RunFolder
from rl_core.runs.settings_file import read_settings


def left_of(run: RunFolder) -> str | None:
    """Returns time and price of the steps that are left, in words; None if none will be done."""
    record, config, last_step = run.read(), _settings(run), last_step_of(run)
    if record.status != "running" or record.reason or config is None or last_step is None:
        return None
    rows = run.metrics.read()
    num_left = last_step - max((row["step"] for row in rows), default=0)
    if num_left <= 0:
        return None
    seconds = [row["timing_s/step"] for row in rows if row.get("timing_s/step")]
    return time_left(seconds, num_left, record.planned_step_s, config.budget)


def steps_in_words(run: RunFolder) -> str | None:
    """Returns what a step takes, beside what was planned: `6.1 s per step, planned: 11.5 s (...)`.

    None before the fifth step of a run that nothing was planned for.
    """
    record, measured = run.read(), measured_step(run.metrics.values("timing_s/step"))
    said = [f"{seconds_in_words(measured)} per step"] if measured is not None else []
    if record.planned_step_s is not None:
        planned = f"{seconds_in_words(record.planned_step_s)} ({record.planned_from})"
        said.append(f"planned: {planned}" if said else f"planned: {planned} per step")
    return ", ".join(said) or None


def last_step_of(run: RunFolder) -> int | None:
    """Returns the step at which training ends, once the data set is there."""
    config, record = _settings(run), run.read()
    if config is None or record.preset == IMPORTED:
        return None
    try:
        if config.trainer.total_steps is not None:
            return config.trainer.total_steps
        if record.data is None:
            return None
        return total_steps(config, count_rows(Path(record.data) / "train.parquet"))
    except ValueError:
        return None  # its data is gone


def _settings(run: RunFolder) -> RunConfig | None:
    try:
        return RunConfig.model_validate(read_settings(run.path))
    except ValueError:
        return None  # imported
