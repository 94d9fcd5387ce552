"""Training's progress, where people look: a bar in the terminal, an artifact in the Prefect UI."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from uuid import UUID

from httpx import HTTPError
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.exceptions import PrefectException
from tqdm import tqdm

Log = logging.Logger | logging.LoggerAdapter[logging.Logger]
"""A logger, or the one that Prefect wraps for a flow or task run."""

ARTIFACT_INTERVAL_S = 2.0
LOG_INTERVAL_S = 30.0


def describe(metrics: dict[str, float]) -> str:
    """Returns a step in one line: accuracy, score, length, KL and tokens per second."""
    shown = (
        ("reward/accuracy", "accuracy {:.3f}"),
        ("val/accuracy", "test {:.3f}"),
        ("critic/score/mean", "score {:.3f}"),
        ("response_length/mean", "{:.0f} tokens"),
        ("critic/kl", "KL {:.4f}"),
        ("rollout/tokens_per_s", "{:,.0f} tokens/s"),
    )
    return " · ".join(text.format(metrics[name]) for name, text in shown if name in metrics)


def time_left(seconds: float) -> str:
    """Returns a duration as a person says it: `40 s`, `12 min`, `3.2 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3600:.1f} h"


class TrainingProgress:
    """Shows each step; in a flow run also as a Prefect progress artifact named `training`.

    Args:
        logger: receives a line every `LOG_INTERVAL_S`, and each test result.
        as_artifact: whether a Prefect run is there to hold the artifact.
    """

    def __init__(self, logger: Log, *, as_artifact: bool) -> None:
        self._logger = logger
        self._as_artifact = as_artifact
        self._artifact_id: UUID | None = None
        self._bar: tqdm | None = None
        self._first: tuple[int, float] | None = None
        self._artifact_at = self._logged_at = float("-inf")

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def on_step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Shows one step; called by the trainer loop."""
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
            self._bar = tqdm(
                total=last_step, initial=step, unit="step", disable=None, file=sys.stderr
            )
        text = f"step {step}/{last_step} · {describe(metrics)}"
        first_step, first_time = self._first
        if step > first_step:
            seconds = (now - first_time) / (step - first_step) * (last_step - step)
            text += f" · {time_left(seconds)} left"
        if self._bar is not None:
            self._bar.set_postfix_str(describe(metrics), refresh=False)
            self._bar.update(step - self._bar.n)
        if now - self._logged_at >= LOG_INTERVAL_S or "val/accuracy" in metrics:
            self._logger.info(text)
            self._logged_at = now
        if now - self._artifact_at >= ARTIFACT_INTERVAL_S or step == last_step:
            self._show_artifact(100.0 * step / last_step, text)
            self._artifact_at = now

    def _show_artifact(self, percent: float, text: str) -> None:
        if not self._as_artifact:
            return
        try:
            if self._artifact_id is None:
                made = create_progress_artifact(percent, key="training", description=text)
                assert isinstance(made, UUID)
                self._artifact_id = made
            else:
                update_progress_artifact(self._artifact_id, percent, description=text)
        except (HTTPError, PrefectException) as error:
            # A server that is gone must not end a night of training.
            self._logger.warning("the progress artifact could not be updated: %s", error)
