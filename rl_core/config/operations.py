"""The settings around learning: the loop, disk, checkpoints, budget, retries, evaluation."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from rl_core.section import MAX_INT, Section
from rl_core.system.redaction import redact
from rl_core.system.signals import GRACE_S
from rl_core.types import SamplingSettings

DEFAULT_ROOT: Final = Path("outputs")
_URL: Final = re.compile(r"(s3|gs|az)://[a-z0-9][a-z0-9._-]+(/[A-Za-z0-9._=-]+)*")


class TrainerConfig(Section):
    """The loop."""

    total_epochs: int = Field(15, ge=1)
    """Passes over the train split."""
    total_steps: int | None = Field(None, ge=1)
    """The last step, if it comes before the end of `total_epochs`."""
    save_freq: int = Field(100, ge=1)
    """Steps between checkpoints; the last step is always saved."""
    test_freq: int = Field(100, ge=1)
    """Steps between tests on the test split, decoded as `evaluation.decoding` says; they choose
    `best`."""
    test_problems: int = Field(1_024, ge=1)
    """How many test problems those evaluations use, from the first one."""
    stop_grace_s: float = Field(GRACE_S, gt=0)
    """Seconds that a step and its save may take after SIGTERM; then they are given up, and the run
    can continue from the latest checkpoint.

    Docker (`stop_grace_period`), Kubernetes and Slurm (`--signal`) kill some time after SIGTERM.
    Set this at least 15 s shorter. Prefect's Cancel waits 30 s. Ctrl-C has no limit.
    """
    logger: tuple[Literal["console", "wandb", "tensorboard"], ...] = ("console",)
    """Where each step is shown in addition to `metrics.jsonl` and `log.txt`, which always have it.

    `console`: a bar and lines in the terminal; `tensorboard`: event files in the run's folder;
    `wandb`: a separate process, which adds samples at each test. Without any, the
    terminal shows only events and warnings.
    """
    wandb_project: str = "countdown-train"
    """Project in wandb that the run belongs to."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`online` falls back to `offline` if the server does not answer within 3 seconds;
    `countdown-train sync` uploads later, from `metrics.jsonl`."""


class StorageConfig(Section):
    """Where files go."""

    root: Path = DEFAULT_ROOT
    """Folder of data sets, runs and cached models; or the `url` of a store, which is then mirrored
    by a folder of its own below `outputs/`."""
    url: str | None = None
    """Object store that `root` is published to during runs: `s3://BUCKET/PREFIX`, `gs://` or `az://`;
    credentials come only from the environment."""
    min_free_gib: float = Field(1.0, ge=0)
    """Preflight refuses to start with less free disk than this; pruning keeps it free."""
    rollout_quota_bytes: int = Field(20_000_000_000, ge=0)
    """Bytes that a run's rollout files may take: beyond it the oldest steps are deleted."""

    @model_validator(mode="before")
    @classmethod
    def _root_may_be_a_url(cls, values: Any) -> Any:
        """Takes `root=s3://...` for the `url`, and gives it a folder."""
        if not isinstance(values, dict) or "://" not in str(values.get("root", "")):
            return values
        url = str(values["root"]).rstrip("/")
        name = re.sub(r"[^A-Za-z0-9.]+", "-", url)
        digest = hashlib.sha256(url.encode()).hexdigest()[:6]
        return values | {"root": DEFAULT_ROOT / f"{name}-{digest}", "url": url}

    @model_validator(mode="after")
    def _url_has_no_credentials(self) -> StorageConfig:
        if self.url is not None and not _URL.fullmatch(self.url):
            raise ValueError(
                f"storage.url={redact(self.url)} must be s3://BUCKET/PREFIX, gs:// or az://, "
                "without credentials: these come from the environment"
            )
        return self


class CheckpointsConfig(Section):
    """Which checkpoints stay."""

    quota_bytes: int = Field(20_000_000_000, ge=1)
    """Bytes that all checkpoints of one run may take; latest and best always stay."""
    keep_last: int = Field(2, ge=0)
    """Newest checkpoints kept in addition to latest and best, if the quota has room."""
    merged: Literal["last", "all", "none"] = "last"
    """Which checkpoints of a run with `model.lora_rank` hold the merged model, and not only the
    adapter: the latest and the best when training ends, all, or none.

    `model.path`, evaluate, ask, export and a resume take either kind, as long as the base is on the
    machine. With `model.load_in_4bit` all are merged.
    """
    in_background: bool = True
    """Saves during training, from a copy in the machine's memory: 12 bytes per trained weight."""


class BudgetConfig(Section):
    """Limits of training, which stops with a checkpoint before a step that would exceed them."""

    price_per_hour: float | None = Field(None, gt=0)
    """Price of the machine per hour; null shows no prices."""
    currency: str = Field("EUR", pattern=r"^\S{1,8}$")
    """Currency that is shown with prices."""
    max_hours: float | None = Field(None, gt=0)
    """Hours of training, at most."""
    max_cost: float | None = Field(None, gt=0)
    """Price of training, at most; needs `price_per_hour`."""
    stop_on_hacked_reward: bool = False
    """Training ends when three tests in a row find that the reward rises, by more than 0.1 of a
    full score, and accuracy on the test split does not: responses may fool the reward."""

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
    longest phase of a step takes. The start, before the first step, may take 1,800 s at least. An
    engine that is silent for half as long, or ten times its longest silence, is replaced."""


class EvaluationConfig(Section):
    """The evaluation after training, of base and trained model alike."""

    decoding: Literal["greedy", "sampled"] = "greedy"
    """What accuracy is of, also in the tests during training: the likeliest response to each
    problem, or the mean of `samples_per_problem` sampled ones, as model cards have it. Models that
    think (Qwen3) repeat themselves without end if they are decoded greedily."""
    samples_per_problem: int = Field(4, ge=1, le=1_024)
    """Samples for pass@k, k in 1, 2, 3, ... up to this, and for maj@k of all of them; with
    `decoding=sampled` also for accuracy."""
    temperature: float = Field(1.0, gt=0, le=2)
    """Temperature of the samples; greedy responses have none."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Samples take only the likeliest tokens whose chances add up to this; 1: all tokens."""
    top_k: int = Field(-1, ge=-1)
    """Samples take only so many of the likeliest tokens, before `top_p` counts; -1 or 0: all."""
    max_problems: int | None = Field(None, ge=1)
    """How many test problems are used, from the first one; null: all."""
    seed: int = Field(0, ge=0, le=MAX_INT)
    """Seed of the samples: every model has the same one."""

    @model_validator(mode="after")
    def _samples_differ(self) -> EvaluationConfig:
        if self.top_k == 1:
            raise ValueError(
                "evaluation.top_k=1 makes all samples of a problem equal: use at least 2, or "
                "evaluation.decoding=greedy"
            )
        return self

    @property
    def samples_that_count(self) -> int:
        """Responses per problem whose mean is the accuracy."""
        return 1 if self.decoding == "greedy" else self.samples_per_problem

    @property
    def protocol(self) -> str:
        """How the responses that count are decoded, in words: accuracies of two do not compare."""
        if self.decoding == "greedy":
            return "greedy"
        words = [f"temperature {self.temperature:g}"]
        words += [f"top_p {self.top_p:g}"] * (self.top_p < 1)
        words += [f"top_k {self.top_k}"] * (self.top_k > 0)
        return f"mean of {self.samples_per_problem} samples, {', '.join(words)}"

    def sampling(self, max_tokens: int, mode: str) -> SamplingSettings:
        """Returns how an engine makes responses of a mode, `greedy` or `sampled`."""
        if mode == "greedy":
            return SamplingSettings(max_tokens, temperature=0.0)
        return SamplingSettings(max_tokens, self.temperature, self.top_p, self.top_k)


def protocol_of(settings: Mapping[str, Any]) -> str:
    """Returns how a run with these settings decodes what counts, see `EvaluationConfig`."""
    with suppress(ValidationError):
        return EvaluationConfig.model_validate(settings.get("evaluation", {})).protocol
    return EvaluationConfig().protocol
