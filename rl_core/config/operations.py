"""The settings that keep a run alive: disk, checkpoints, budget, retries."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from rl_core.section import Section


class StorageConfig(Section):
    """Where files go."""

    root: Path = Path("outputs")
    """Folder of data sets, runs and cached models."""
    min_free_gib: float = Field(1.0, ge=0)
    """Preflight refuses to start with less free disk than this; pruning keeps it free."""
    rollout_quota_bytes: int = Field(20_000_000_000, ge=0)
    """Bytes that a run's rollout files may take: beyond it the oldest steps are deleted."""


class CheckpointsConfig(Section):
    """Which checkpoints stay."""

    quota_bytes: int = Field(20_000_000_000, ge=1)
    """Bytes that all checkpoints of one run may take; latest and best always stay."""
    keep_last: int = Field(2, ge=0)
    """Newest checkpoints kept beside latest and best, quota permitting."""
    keep_every: int | None = Field(None, ge=1)
    """Older checkpoints of every so many steps stay too, quota permitting."""
    in_background: bool = True
    """Written beside training, from a copy in the machine's memory: 12 bytes per trained weight."""


class BudgetConfig(Section):
    """What training may take: a step that would go beyond stops it cleanly, with a checkpoint."""

    price_per_hour: float | None = Field(None, gt=0)
    """Of the machine; null shows no prices."""
    currency: str = Field("EUR", pattern=r"^\S{1,8}$")
    """Of prices, as they are shown."""
    max_hours: float | None = Field(None, gt=0)
    """Hours of training, at most."""
    max_cost: float | None = Field(None, gt=0)
    """Price of training, at most; wants `price_per_hour`."""

    @model_validator(mode="after")
    def _cost_has_a_price(self) -> BudgetConfig:
        if self.max_cost is not None and self.price_per_hour is None:
            raise ValueError(
                f"budget.max_cost={self.max_cost:g} says nothing without a price: "
                "set budget.price_per_hour"
            )
        return self


class RetryConfig(Section):
    """Retries of the train step, from the latest checkpoint, when memory or a process was lost."""

    max_retries: int = Field(4, ge=0)
    """After an out-of-memory error each takes the next step of oom_recovery.py."""
    delay_s: float = Field(5.0, ge=0)
    """Seconds before each retry."""


class WatchdogConfig(Section):
    """When training counts as stalled: it is then stopped, and retried like a killed one."""

    stall_s: float = Field(1800.0, gt=0)
    """Seconds without progress (a part of the rollouts, an update, a sync, a save): more than the
    longest phase of a step takes."""
