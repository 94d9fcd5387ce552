"""A run's folder: its record, settings, metrics and rollouts, each written so that it can be read.

    run.json, config.yaml     replaced whole
    metrics.jsonl             one line per step, appended
    rollouts/step_000001.parquet

Local files come first. What leaves the machine (wandb) is in `rl_core/wandb_tracker.py` and can
neither stop nor slow a run.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel, ConfigDict

from rl_core.atomic import locked, new_file, sweep_leftovers, write_text_atomically
from rl_core.config import RunConfig
from rl_core.log_file import log_to_file, redact
from rl_core.schema import ROLLOUTS
from rl_core.types import Rollout

LEARNED_COLUMNS = ("reward", "advantage_mean", "value_mean", "logprob_gap_mean", "ref_kl")
"""Columns of a rollout row that the learner fills; those it does not give are null."""
_ROLLOUT_FILE = re.compile(r"step_(\d{6,})\.parquet")
_WORDS = (
    "amber",
    "birch",
    "cedar",
    "delta",
    "ember",
    "fjord",
    "grove",
    "heron",
    "ivory",
    "juniper",
)
_logger = logging.getLogger(__name__)


class Attempt(BaseModel):
    """One start of a run: the first, a continuation or a retry."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    started_at: str
    reason: str
    """`started`, `continued`, or why a retry was needed."""


class RunRecord(BaseModel):
    """The content of `run.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    run_id: str
    preset: str
    status: Literal["running", "finished", "failed", "interrupted"] = "running"
    steps: int = 0
    """Training steps done."""
    accuracy_before: float | None = None
    """Greedy accuracy of the base model on the test split."""
    accuracy_after: float | None = None
    reason: str | None = None
    """Why the run is in its status, in one sentence, where there is something to say."""
    started_at: str
    finished_at: str | None = None
    model: str | None = None
    data: str | None = None
    timings_s: dict[str, float] = {}
    """Wall seconds by stage."""
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class RunFolder:
    """`<storage.root>/runs/<run_id>`: plain paths inside, so it can be handed to any process."""

    path: Path

    @classmethod
    def create(cls, config: RunConfig) -> RunFolder:
        """Makes a run's folder, or opens the one of a run that is continued, and returns it.

        The run's record says `running` afterwards, with one attempt more; `config.yaml` holds
        today's settings.

        Raises:
            ValueError: the folder cannot be written, or what lies there is no run.
        """
        run = cls(config.storage.root / "runs" / (config.run_id or new_run_id()))
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            write_text_atomically(run.path / "config.yaml", settings_as_yaml(config))
        except OSError as error:
            raise ValueError(
                f"storage.root={config.storage.root} cannot be written ({error.strerror}): "
                "choose another with storage.root=FOLDER"
            ) from error
        if (run.path / "run.json").exists():
            run.add_attempt("continued")
            run.update(preset=config.preset, status="running", reason=None, finished_at=None)
        else:
            first = Attempt(started_at=utc_now(), reason="started")
            run._write(
                RunRecord(
                    run_id=run.run_id,
                    preset=config.preset,
                    started_at=first.started_at,
                    attempts=(first,),
                )
            )
        return run

    @property
    def run_id(self) -> str:
        """The run's name, that of its folder."""
        return self.path.name

    @property
    def metrics(self) -> MetricsLog:
        """The run's `metrics.jsonl`."""
        return MetricsLog(self.path / "metrics.jsonl")

    @property
    def rollouts(self) -> RolloutLog:
        """The run's `rollouts/`."""
        return RolloutLog(self.path / "rollouts", self.run_id)

    def read(self) -> RunRecord:
        """Returns what `run.json` says.

        Raises:
            ValueError: there is none, or it is no run's record.
        """
        file = self.path / "run.json"
        try:
            return RunRecord.model_validate_json(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} is not the record of a run: {error}") from error

    def update(self, **changes: object) -> RunRecord:
        """Changes fields of `run.json` in one step and returns the new record.

        Args:
            changes: fields of `RunRecord`; stages in `timings_s` are added to those there.
        """
        with locked(self.path):
            before = self.read()
            if isinstance(stages := changes.get("timings_s"), Mapping):
                changes["timings_s"] = before.timings_s | dict(stages)
            record = RunRecord.model_validate(before.model_dump() | changes)
            self._write(record)
        return record

    def add_attempt(self, reason: str) -> None:
        """Notes in `run.json` that the run was started again, and why."""
        attempt = Attempt(started_at=utc_now(), reason=redact(reason))
        self.update(attempts=(*self.read().attempts, attempt))

    def cut_after(self, step: int) -> None:
        """Forgets metrics and rollouts past a step, which a resume from its checkpoint redoes.

        Step 0 has no checkpoint: starting from it redoes everything, its own test included.
        """
        last_kept = step if step > 0 else -1
        self.metrics.cut_after(last_kept)
        self.rollouts.cut_after(last_kept)

    def log_to_file(self) -> AbstractContextManager[None]:
        """Appends to `log.txt` what is logged in the block."""
        return log_to_file(self.path / "log.txt")

    def _write(self, record: RunRecord) -> None:
        text = record.model_dump_json(indent=2)
        write_text_atomically(self.path / "run.json", redact(text) + "\n")


@dataclass(frozen=True)
class MetricsLog:
    """`metrics.jsonl`: one JSON object per step, readable while the run goes on."""

    path: Path

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Appends one line and flushes it to the disk; non-finite numbers become null.

        A full disk costs the line and a warning, not the run.

        Args:
            step: training steps done.
            metrics: by name; `epoch` among them, 0 where it is absent.
        """
        row = {
            "step": step,
            "epoch": int(metrics.get("epoch", 0)),
            "time": utc_now(),
            **{name: _finite(value) for name, value in metrics.items() if name != "epoch"},
        }
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        try:
            _append(self.path, line)
        except OSError as error:
            _logger.warning("the metrics of step %d could not be written: %s", step, error)

    def read(self) -> list[dict[str, Any]]:
        """Returns the rows, without a line that a crash cut short."""
        if not self.path.exists():
            return []
        rows = (_parse(line) for line in self.path.read_text(encoding="utf-8").splitlines())
        return [row for row in rows if row is not None]

    def cut_after(self, step: int) -> None:
        """Removes the lines of later steps, and a line that a crash cut short."""
        if self.path.exists():
            rows = [row for row in self.read() if row["step"] <= step]
            write_text_atomically(self.path, "".join(json.dumps(row) + "\n" for row in rows))


@dataclass(frozen=True)
class RolloutLog:
    """`rollouts/`: one parquet file per step, in `rl_core.schema.ROLLOUTS`."""

    folder: Path
    run_id: str

    def write(
        self,
        step: int,
        epoch: int,
        rollouts: Sequence[Rollout],
        learned: Mapping[str, Sequence[float] | npt.NDArray[Any]],
        *,
        policy_version: int,
    ) -> Path | None:
        """Writes the rollouts of one step and returns the file.

        A full disk costs the file (then None) and a warning, not the run.

        Args:
            step: the step that learned from them.
            epoch: pass over the data, from 0.
            rollouts: in the order of `learned`.
            learned: columns of `LEARNED_COLUMNS`, one number per rollout; NaN becomes null.
            policy_version: the step whose weights generated them, 0 for the base model's.

        Raises:
            ValueError: `learned` holds another column, or not one number per rollout.
        """
        file = self.folder / f"step_{step:06d}.parquet"
        table = _rollout_table(
            self.run_id, step, epoch, rollouts, learned, policy_version=policy_version
        )
        try:
            with new_file(file) as temporary:
                pq.write_table(table, temporary, compression="zstd")
        except OSError as error:
            _logger.warning("the rollouts of step %d could not be written: %s", step, error)
            return None
        return file

    def cut_after(self, step: int) -> None:
        """Removes the files of later steps, and what a killed write left."""
        sweep_leftovers(self.folder)
        for file in self.folder.glob("*.parquet"):
            name = _ROLLOUT_FILE.fullmatch(file.name)
            if name and int(name[1]) > step:
                file.unlink()


def new_run_id() -> str:
    """Returns a name for a run that sorts by time and can be spoken: `20261120-235631-amber`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.choice(_WORDS)}"


def settings_as_yaml(config: RunConfig) -> str:
    """Returns all settings, resolved, as YAML; they hold no secrets, URLs lose theirs."""
    return redact(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def utc_now() -> str:
    """Returns the time in ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _rollout_table(
    run_id: str,
    step: int,
    epoch: int,
    rollouts: Sequence[Rollout],
    learned: Mapping[str, Sequence[float] | npt.NDArray[Any]],
    *,
    policy_version: int,
) -> pa.Table:
    """Returns one row per rollout."""
    for name, values in learned.items():
        if name not in LEARNED_COLUMNS or len(values) != len(rollouts):
            raise ValueError(
                f"column {name!r} with {len(values)} numbers for {len(rollouts)} rollouts: "
                f"expected one number each, in {', '.join(LEARNED_COLUMNS)}"
            )
    now = datetime.now(UTC)
    rows = [
        {
            "run_id": run_id,
            "step": step,
            "epoch": epoch,
            "prompt_index": rollout.problem.index,
            "data_source": rollout.problem.data_source,
            "group_id": rollout.group_id,
            "sample_index": rollout.sample_index,
            "policy_version": policy_version,
            "prompt": rollout.prompt_text,
            "response": rollout.response_text,
            "answer": rollout.scored.answer,
            "verdict": rollout.scored.verdict,
            "score": rollout.scored.score,
            **{name: _finite(values[i]) for name, values in learned.items()},
            "prompt_tokens": len(rollout.prompt_ids),
            "response_tokens": len(rollout.completion.response_ids),
            "finish_reason": rollout.completion.finish_reason,
            "logprob_sum": float(rollout.completion.logprobs.sum(dtype="float64")),
            "generated_at": now,
        }
        for i, rollout in enumerate(rollouts)
    ]
    return pa.Table.from_pylist(rows, schema=ROLLOUTS)


def _finite(value: float) -> float | None:
    """Returns a number as plain Python (numpy's do not serialise), None for NaN and infinities."""
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def _append(path: Path, line: bytes) -> None:
    """Appends a whole line or nothing, in one write, and flushes it to the disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        try:
            if os.write(descriptor, line) != len(line):
                raise OSError("no space left for the line")
            os.fsync(descriptor)
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def _parse(line: str) -> dict[str, Any] | None:
    """Returns a line's object, None if it was cut short."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
