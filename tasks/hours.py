"""How long a run will take and what it will cost: measured before, or by a roofline."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rl_core.config.run import RunConfig
from rl_core.data.dataset import count_problems
from rl_core.data.readers import count_rows
from rl_core.data.sampling import steps_per_epoch, total_steps
from rl_core.resources import cost
from rl_core.resources.memory_plan import ModelShape
from rl_core.resources.roofline import Machine, step_time_range
from rl_core.runs.metrics_log import MetricsLog
from rl_core.runs.run_folder import IMPORTED, RunFolder
from rl_core.runs.settings_file import read_settings
from tasks.queries.run_tables import find_runs

_SHAPE: Final = {
    "env": None,
    "model": None,
    "base_model": {"vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"},
    "algorithm": {"estimator", "group_size", "kl_mode", "resample_rounds"},
    "teacher": {"path", "signal"},
    "actor": {"mini_batch_size", "micro_batch_tokens", "ppo_epochs"},
    "data": {"train_batch_size", "max_prompt_length", "max_response_length"},
    "rollout": {"engine", "num_engines", "staleness", "sleep"},
    "resources": None,
}
"""Settings that a step's time depends on, by section; None: all of the section."""


@dataclass(frozen=True)
class StepEstimate:
    """Seconds per step, and where they come from."""

    seconds: cost.Spread
    basis: Literal["measured", "roofline"]
    source: str  # a run, or a card

    def __str__(self) -> str:
        """Returns its basis: `measured in run NAME` or `a roofline of CARD`."""
        of = "measured in run" if self.basis == "measured" else "a roofline of"
        return f"{of} {self.source}"


def measured_before(config: RunConfig) -> StepEstimate | None:
    """Returns the rate of the last run of the same shape."""
    shape = _shape(config.model_dump(mode="json"))
    for run in reversed(find_runs(config.storage.root)):
        if _shape(read_settings(run)) != shape:
            continue
        rows = MetricsLog(run / "metrics.jsonl").read()
        trained = (row for row in rows if row["step"] > 0)  # step 0 is only a test
        steps = [seconds for row in trained if (seconds := row.get("timing_s/step"))]
        seconds = cost.measured_step(steps, at_least=1)
        if seconds is not None:
            return StepEstimate(seconds, "measured", run.name)
    return None


def estimates(
    config: RunConfig, shape: ModelShape | None, machines: list[Machine]
) -> list[StepEstimate]:
    """Returns the known estimates of a step's time: a measured one, or one per possible machine."""
    if (known := measured_before(config)) is not None:
        return [known]
    if shape is None:
        return []
    return [
        StepEstimate(step_time_range(shape, config, machine), "roofline", machine.name)
        for machine in machines
    ]


@dataclass(frozen=True)
class TimePlan:
    """Steps of a run, and their time and price at the estimated seconds per step."""

    config: RunConfig
    problems: int
    estimate: StepEstimate

    @property
    def steps_in_epoch(self) -> int:
        """Steps of one pass over the problems."""
        return steps_per_epoch(self.problems, self.config.data.train_batch_size)

    @property
    def steps(self) -> int:
        """Steps of all training."""
        return total_steps(self.config, self.problems)

    def __str__(self) -> str:
        """Returns time and price of an epoch and of all training, in words."""
        step, budget = self.estimate.seconds, self.config.budget
        epoch, whole = (
            cost.time_and_price_range(step.times(n), budget)
            for n in (self.steps_in_epoch, self.steps)
        )
        return (
            f"{cost.seconds_in_words(step)} per step ({self.estimate}): {epoch} per epoch of "
            f"{self.problems:,} problems, {whole} for {self.steps:,} steps of training"
        )

    def brief(self) -> str:
        """Returns machine and an epoch's time and price, in words."""
        epoch = self.estimate.seconds.times(self.steps_in_epoch)
        return f"{self.estimate.source} {cost.time_and_price_range(epoch, self.config.budget)}"


def planned_steps(config: RunConfig) -> int:
    """Returns the steps of all training; ValueError if the problems are too few for one step."""
    return total_steps(config, count_problems(config))


def epochs_end_first(config: RunConfig, problems: int) -> str | None:
    """Returns in words that the epochs end training before the steps that were asked for."""
    steps = total_steps(config, problems)
    if steps == (config.trainer.total_steps or steps):
        return None
    epochs = config.trainer.total_epochs
    return (
        f"{steps:,} steps: {epochs} epochs of {problems:,} problems end before "
        f"trainer.total_steps={config.trainer.total_steps}"
    )


def _shape(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        section: {
            name: value
            for name, value in (settings.get(section) or {}).items()
            if value is not None and (names is None or name in names)
        }
        for section, names in _SHAPE.items()
    }


def left_of(run: RunFolder) -> str | None:
    """Returns time and price of the steps that are left, in words; None if none will be done."""
    record, config, last_step = run.read(), _settings(run.path), last_step_of(run)
    if record.status != "running" or record.reason or config is None or last_step is None:
        return None
    rows = run.metrics.read()
    num_left = last_step - max((row["step"] for row in rows), default=0)
    if num_left <= 0:
        return None
    seconds = [row["timing_s/step"] for row in rows if row.get("timing_s/step")]
    return cost.time_left(seconds, num_left, record.planned_step_s, config.budget)


def steps_in_words(run: RunFolder) -> str | None:
    """Returns a step's measured and planned time: `6.1 s per step, planned: 11.5 s (...)`."""
    record, measured = run.read(), cost.measured_step(run.metrics.values("timing_s/step"))
    said = [f"{cost.seconds_in_words(measured)} per step"] if measured is not None else []
    if record.planned_step_s is not None:
        planned = f"{cost.seconds_in_words(record.planned_step_s)} ({record.planned_from})"
        said.append(f"planned: {planned}" if said else f"planned: {planned} per step")
    return ", ".join(said) or None


def last_step_of(run: RunFolder) -> int | None:
    """Returns the step at which training ends; None if that cannot be known (no data set, say)."""
    config, record = _settings(run.path), run.read()
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
