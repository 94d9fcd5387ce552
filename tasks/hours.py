"""How long a run takes and what it costs, by what was measured in runs of the same shape."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from rl_core.config.run import RunConfig
from rl_core.data.readers import count_rows
from rl_core.data.sampling import total_steps
from rl_core.resources import cost
from rl_core.runs.metrics_log import MetricsLog
from rl_core.runs.run_folder import IMPORTED, RunFolder
from rl_core.runs.settings_file import read_settings
from rl_core.runs.waiting import read_waits
from tasks.queries.run_tables import find_runs

_SHAPE: Final = {
    "env",
    "model",
    "resources",
    "algorithm.estimator",
    "algorithm.group_size",
    "algorithm.kl_mode",
    "algorithm.resample_rounds",
    "actor.mini_batch_size",
    "actor.micro_batch_tokens",
    "actor.ppo_epochs",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "rollout.engine",
    "rollout.num_engines",
    "rollout.staleness",
    "rollout.sleep",
    "base_model.vocab_size",
    "base_model.hidden_size",
    "base_model.intermediate_size",
    "base_model.num_layers",
    "base_model.num_heads",
}
"""Settings, and whole sections, that a step's time depends on."""


class StepEstimate(NamedTuple):
    """Seconds per step, and where they come from: `measured in run A`, `a roofline of H100`."""

    seconds: cost.Spread
    source: str


def measured_before(config: RunConfig) -> StepEstimate | None:
    """Returns the rate of the last run of the same shape."""
    shape = _shape(config.model_dump(mode="json"))
    for run in reversed(find_runs(config.storage.root)):
        if _shape(read_settings(run)) == shape:
            rows = MetricsLog(run / "metrics.jsonl").read()  # step 0 is only a test
            steps = (row.get("timing_s/step") for row in rows if row["step"])
            if (seconds := cost.measured_step(filter(None, steps), at_least=1)) is not None:
                return StepEstimate(seconds, f"measured in run {run.name}")
    return None


def _shape(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        f"{section}.{name}": value
        for section, values in settings.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
        if value is not None and not _SHAPE.isdisjoint((section, f"{section}.{name}"))
    }


def left_of(run: RunFolder) -> str | None:
    """Returns time and price of the steps that are left, as text; None if none will be done."""
    record = run.read()
    config = _settings(run.path)
    rows = run.metrics.read()
    num_left = (last_step_of(run) or 0) - max((row["step"] for row in rows), default=0)
    if record.status != "running" or record.reason or config is None or num_left <= 0:
        return None
    seconds = [row["timing_s/step"] for row in rows if row.get("timing_s/step")]
    waits = read_waits(run.path)
    running_s = waits.step_age_s if waits is not None and rows else 0.0  # before: a start, no step
    return cost.time_left(
        seconds, num_left, record.planned_step_s, config.budget, running_s=running_s
    )


def steps_in_words(run: RunFolder) -> str | None:
    """Returns a step's measured and planned time: `6.1 s per step, planned: 11.5 s (...)`."""
    record = run.read()
    measured = cost.measured_step(run.metrics.values("timing_s/step"))
    words = [f"{cost.seconds_in_words(measured)} per step"] if measured is not None else []
    if record.planned_step_s is not None:
        planned = f"planned: {cost.seconds_in_words(record.planned_step_s)} ({record.planned_from})"
        words.append(planned if words else f"{planned} per step")
    return ", ".join(words) or None


def last_step_of(run: RunFolder) -> int | None:
    """Returns the step at which training ends; None if that cannot be known (no data set, say)."""
    config = _settings(run.path)
    record = run.read()
    if config is None or record.preset == IMPORTED:
        return None
    with suppress(OSError, ValueError):  # its data is gone
        if record.data is not None:
            return total_steps(config, count_rows(Path(record.data) / "train.parquet"))
    return config.trainer.total_steps


def _settings(run: Path) -> RunConfig | None:
    with suppress(ValueError):
        return RunConfig.model_validate(read_settings(run))
    return None
