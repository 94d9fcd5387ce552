"""Shows training's progress: a bar in the terminal, artifacts in the Prefect UI."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from tqdm import tqdm

from rl_core.config.run import RunConfig
from rl_core.resources.cost import Spread, time_left
from rl_core.runs.rollout_log import RolloutLog, samples_of_step
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.waiting import read_waits, waits_in_words
from rl_core.system.log_file import Log
from rl_core.system.words import without_middle
from rl_core.tracking.diagnosis import diagnose
from tasks.prefect_ui.artifacts import LiveArtifacts, dialogue, plain
from tasks.prefect_ui.chart import as_picture, learning_curve

_LOG_INTERVAL_S = 30.0
_REFRESH_S = 5.0
_DIAGNOSIS_STEPS = 5  # between two diagnoses; a hundredth of the steps, if that is more
_DIAGNOSES_PER_RUN = 100
HEADLINES: Final = {
    "reward/accuracy": "accuracy {:.3f}",
    "val/accuracy": "test {:.3f}",
    "critic/score/mean": "score {:.3f}",
    "response_length/mean": "{:.0f} tokens",
    "critic/kl": "KL {:.4f}",
    "rollout/tokens_per_s": "{:,.0f} tokens/s",
}
"""Metrics by which people judge a run, and how a line shows them."""
_SAMPLES: Final = 4  # responses shown of the last step
_LONGEST_PROMPT: Final = 1_000
_LONGEST_RESPONSE: Final = 1_500  # characters; a longer one is shown without its middle
_GAP: Final = "\n[...]\n"


def describe(metrics: dict[str, float]) -> str:
    """Returns a step in one line: accuracy, score, length, KL and tokens per second."""
    shown = ((text, metrics[name]) for name, text in HEADLINES.items() if name in metrics)
    return " · ".join(text.format(value) for text, value in shown)


class TrainingProgress:
    """Shows each step: in the log, as a bar, and by live artifacts of a Prefect run.

    log.txt keeps a line per step; terminal and Prefect's UI show one every `_LOG_INTERVAL_S`, and
    each test result. Seconds per step are as `planned` until enough are measured; `earlier` are
    metrics of the steps before this attempt. `artifacts_of`: the run, if it is in a Prefect run.
    """

    def __init__(
        self,
        logger: Log,
        config: RunConfig,
        *,
        planned: Spread | None = None,
        earlier: Iterable[Mapping[str, Any]] = (),
        artifacts_of: RunFolder | None = None,
    ) -> None:
        self._logger = logger
        self._config = config
        self._planned = planned
        self._on_console = "console" in config.trainer.logger
        self._run = artifacts_of
        self._done: tuple[int, int, dict[str, float]] | None = None  # step, last step, metrics
        self._refresh_at = 0.0
        self._artifacts = LiveArtifacts(self._refresh) if artifacts_of is not None else None
        self._bar: tqdm | None = None
        self._logged_at = float("-inf")
        self._rows = {int(row["step"]): row for row in earlier}
        self._logged: set[tuple[str, str]] = set()
        self._step_seconds = [
            float(row["timing_s/step"]) for row in self._rows.values() if row.get("timing_s/step")
        ]
        self._diagnosed_at = 0

    def __enter__(self) -> TrainingProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()
        if self._rows:
            self._diagnose(max(self._rows))  # or what was wrong before the end would stay
        if self._artifacts is not None:
            self._artifacts.close()

    def on_step(self, step: int, last_step: int, metrics: dict[str, float]) -> None:
        """Shows one step."""
        now = time.monotonic()
        if self._bar is None:
            self._bar = tqdm(
                total=last_step,
                initial=step,
                unit="step",
                disable=None if self._on_console else True,  # None: off if stderr is no terminal
                file=sys.stderr,
            )
        if "timing_s/step" in metrics:
            self._step_seconds.append(metrics["timing_s/step"])
        self._done = step, last_step, metrics
        text = self._line()
        self._rows[step] = metrics | {"step": step}
        # A diagnosis reads all steps again: after many steps it is made less often.
        if step - self._diagnosed_at >= max(_DIAGNOSIS_STEPS, step // _DIAGNOSES_PER_RUN):
            self._diagnosed_at = step - step % _DIAGNOSIS_STEPS
            self._diagnose(step)
        self._bar.set_postfix_str(describe(metrics), refresh=False)
        self._bar.update(step - self._bar.n)
        is_due = now - self._logged_at >= _LOG_INTERVAL_S or "val/accuracy" in metrics
        shown = {"to_console": self._on_console and is_due, "send_to_api": is_due}
        self._logger.info(text, extra=shown)  # log.txt has each step
        self._logged_at = now if is_due else self._logged_at
        self._show(step, last_step, text)

    def _line(self, running_s: float = 0.0) -> str:
        """Returns the last step, and what is left after it, in one line; empty before the first."""
        if self._done is None:
            return ""
        step, last_step, metrics = self._done
        seconds = self._step_seconds
        num_left = last_step - step
        budget = self._config.budget
        left = (
            time_left(seconds, num_left, self._planned, budget, running_s=running_s)
            if num_left > 0
            else None
        )
        return " · ".join(filter(None, (f"step {step}/{last_step}", describe(metrics), left)))

    def _show(self, step: int, last_step: int, text: str) -> None:
        if self._artifacts is None or self._run is None:
            return
        show = self._artifacts.show
        show("training", "progress", lambda: 100.0 * step / last_step, text)
        self._refresh_at = time.monotonic() + _REFRESH_S
        title = f"{self._run.run_id}: step {step} of {last_step}"
        show(
            "learning-curve",
            "markdown",
            lambda: as_picture(learning_curve(self._up_to(step), title)),
            f"As of step {step}.",
        )
        show(
            "samples",
            "markdown",
            partial(latest_samples, self._run.rollouts),
            "A few of the latest responses, as the model wrote them.",
        )

    def _refresh(self) -> None:
        """Adds to what is shown of training what it waits for, if no step was done for a while."""
        if self._artifacts is None or self._run is None or time.monotonic() < self._refresh_at:
            return
        self._refresh_at = time.monotonic() + _REFRESH_S
        step, last_step, _ = self._done or (0, 1, {})
        if waits := waits_in_words(self._run.path):
            if self._bar is not None:
                self._bar.set_postfix_str(waits[0])
            record = read_waits(self._run.path)
            line = self._line(record.step_age_s if record is not None else 0.0)
            text = "\n\n".join(filter(None, (line, *map(plain, waits))))
            self._artifacts.show("training", "progress", lambda: 100.0 * step / last_step, text)

    def _up_to(self, step: int) -> list[Mapping[str, Any]]:
        """Returns the metrics of the steps so far; any thread may call it."""
        return [row for row in list(self._rows.values()) if row["step"] <= step]

    def _diagnose(self, step: int) -> None:
        """Logs what is wrong, each rule and advice only once, and shows all of it in the UI."""
        diagnoses = diagnose(self._up_to(step), self._config)
        for one in diagnoses:
            if (one.rule, one.advice) not in self._logged:
                level = logging.INFO if one.is_note else logging.WARNING
                self._logger.log(level, "step %d, diagnosis: %s", step, one)
                self._logged.add((one.rule, one.advice))
        if self._logged and self._artifacts is not None:
            lines = [f"- **{one.says}** ({one.evidence}). Try: {one.advice}" for one in diagnoses]
            text = "\n".join(lines) or "nothing stands out"
            self._artifacts.show("diagnosis", "markdown", lambda: text, f"As of step {step}.")


def latest_samples(rollouts: RolloutLog) -> str | None:
    """Returns responses of the last step, if any, as markdown that no response can break."""
    rows = samples_of_step(rollouts.folder, most=_SAMPLES)
    if not rows:
        return None
    parts = [
        dialogue(
            f"{row['verdict']}: score {row['score']:g}, {row['response_tokens']} tokens, "
            f"{row['finish_reason']}",
            without_middle(row["prompt"], _LONGEST_PROMPT, _GAP),
            without_middle(row["response"], _LONGEST_RESPONSE, _GAP),
        )
        for row in rows
    ]
    more = f"countdown-train sql samples_of_a_verdict --run {rollouts.run_id} -p verdict=correct"
    return "\n\n".join([f"Of step {rows[0]['step']}:", *parts, f"More of them: `{more}`"]) + "\n"
