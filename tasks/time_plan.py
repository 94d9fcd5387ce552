"""How long a run will take and what it will cost, from the last run of the same shape."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml

from rl_core.config import RunConfig
from rl_core.cost import time_and_price
from rl_core.data_order import steps_per_epoch, total_steps
from rl_core.env_config import CountdownConfig
from rl_core.tracking import MetricsLog
from tasks.run_files import find_runs

_LAST_STEPS: Final = 50
"""Steps whose median time counts: the last, since responses grow."""
_GSM8K_PROBLEMS: Final = 7_473
_SHAPE: Final = {
    "env": None,
    "model": None,
    "base_model": {"vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads"},
    "algorithm": {"estimator", "group_size", "kl_mode", "resample_rounds"},
    "actor": {"mini_batch_size", "micro_batch_tokens", "ppo_epochs"},
    "critic": {"share_trunk"},
    "data": {"train_batch_size", "max_prompt_length", "max_response_length"},
    "rollout": {"engine", "num_engines", "overlap", "sleep"},
    "resources": None,
}
"""Settings that a step's time depends on, by section; None: all of the section."""


def seconds_per_step(config: RunConfig) -> tuple[str, float] | None:
    """Returns the last run of the same shape and its seconds per step; None if there is none."""
    wanted = _shape(config.model_dump(mode="json"))
    for run in reversed(find_runs(config.storage.root)):
        if _shape(_settings(run)) != wanted:
            continue
        rows = [row for row in MetricsLog(run / "metrics.jsonl").read() if row["step"] > 0]
        # Tests and saves are not part of every step: the median leaves them out.
        times = [row["timing_s/step"] for row in rows if row.get("timing_s/step")]
        if times:
            return run.name, median(times[-_LAST_STEPS:])
    return None


def describe_plan(config: RunConfig, step_s: float, source: str) -> str:
    """Returns time and price of an epoch and of all training, in words.

    Args:
        config: the run's settings.
        step_s: seconds per step.
        source: where they come from.
    """
    num_problems = _num_problems(config)
    in_epoch = steps_per_epoch(num_problems, config.data.train_batch_size)
    in_all = planned_steps(config)
    epoch, whole = (time_and_price(step_s * n, config.budget) for n in (in_epoch, in_all))
    return (
        f"{step_s:.3g} s per step ({source}): {epoch} per epoch of {num_problems:,} problems, "
        f"{whole} for {in_all:,} steps of training"
    )


def planned_steps(config: RunConfig) -> int:
    """Returns the steps of all training."""
    return total_steps(config, _num_problems(config))


def _num_problems(config: RunConfig) -> int:
    is_countdown = isinstance(config.env, CountdownConfig)
    return config.data.train_size if is_countdown else _GSM8K_PROBLEMS


def _settings(run: Path) -> dict[str, Any]:
    try:
        settings = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _shape(settings: dict[str, Any]) -> dict[str, Any]:
    shape: dict[str, Any] = {}
    for section, names in _SHAPE.items():
        values = settings.get(section) or {}
        shape[section] = {k: v for k, v in values.items() if names is None or k in names}
    return shape
