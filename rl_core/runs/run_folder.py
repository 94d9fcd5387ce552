"""A run's folder: its record, settings, metrics and rollouts, each written so that it can be read.

    run.json, config.yaml     replaced whole
    metrics.jsonl             one line per step, appended; metrics_cut.jsonl: see `cut_after`
    rollouts/                 see rollout_log.py
    held_out/                 see validation_log.py
    eval/                     see evaluation_files.py
    .reserve                  while the run goes on: see disk_reserve.py
    .owner, .trainer          locks of who is at work on it: see lock.py

Local files come first. What leaves the machine (wandb) is in `rl_core/tracking/` and can
neither stop nor slow a run.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict

from rl_core.checkpoints.store import list_checkpoints
from rl_core.config.operations import BudgetConfig
from rl_core.config.run import RunConfig
from rl_core.evaluation.files import EvaluationFiles
from rl_core.resources.cost import Spread, price_in_words
from rl_core.resources.oom_recovery import Changes, in_words
from rl_core.runs.rollout_log import RolloutLog, finite_or_none
from rl_core.runs.settings_file import changed_settings, read_settings
from rl_core.runs.validation_log import HeldOutLog
from rl_core.system.atomic import append_line, locked, write_text_atomically
from rl_core.system.disk_reserve import drop_reserve, hold_reserve, write_last_words
from rl_core.system.log_file import log_to_file, redact
from rl_core.system.versions import made_with

_WORDS = ["amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "ivory", "jade"]
_NUMBERS = re.compile(r'\[\n[^"\[\]{}]*\]')
"""A list without texts or lists in it."""
_NOTHING_TO_SAY: dict[str, Any] = {
    "reason": None,
    "finished_at": None,
    "next_step": None,
    "last_metrics": {},
    "memory_gib": {},
}
_logger = logging.getLogger(__name__)


IMPORTED: Final = "imported"
"""The preset of a run that was made of another system's log."""

AFTER: Final = "continued after: "
"""Before the reason of a run that failed, in that of the attempt which a person made next."""


class Attempt(BaseModel):
    """One start of a run: the first, a continuation or a retry."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    started_at: str
    reason: str
    """`started`, `continued`, `AFTER` and why the run had failed, or why a retry was needed."""
    from_step: int = 0
    """Of the checkpoint that it goes on from."""
    changes: Changes = {}
    """What a retry changed of the settings (`resources.oom_recovery`); later attempts keep it."""
    asked: str = ""
    """What a person asked for otherwise than before, as one would type it."""

    @property
    def changed(self) -> str:
        """What is other than in the attempt before, as one would type it."""
        return " ".join(filter(None, (in_words(self.changes), self.asked)))


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
    next_step: str | None = None
    """What to do about a run that failed or was interrupted, in one sentence."""
    last_metrics: dict[str, float] = {}
    """Of a run that failed: the step it got to, and what its last steps measured."""
    memory_gib: dict[str, tuple[float | None, ...]] = {}
    """Of a run that failed: `step`, and by phase the memory peaks of these last steps, in GiB."""
    started_at: str
    finished_at: str | None = None
    model: str | None = None
    data: str | None = None
    champion: str | None = None
    """Whether the trained model became champion of its problems, and why, in one sentence."""
    host_peak_gib: dict[str, float] = {}
    """The most that each of the run's processes held of the machine's memory while it trained."""
    timings_s: dict[str, float] = {}
    """Wall seconds by stage."""
    own_settings: dict[str, tuple[Any, Any]] = {}
    """What the user changed of the preset: by name, the preset's value and the run's own."""
    planned_step_s: Spread | None = None
    """Seconds per step as they were estimated before the first, and between which bounds."""
    planned_from: str | None = None
    """What that rests on, in words."""
    made_with: dict[str, str] = {}
    """Versions and machine of the latest attempt, see `rl_core.system.versions`."""
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class RunFolder:
    """`<storage.root>/runs/<run_id>`: plain paths inside, so it can be handed to any process."""

    path: Path

    @classmethod
    def under(cls, root: Path, run_id: str) -> RunFolder:
        """Returns the folder of a run below `storage.root`, there or not."""
        return cls(root / "runs" / run_id)

    @classmethod
    def all_under(cls, root: Path) -> list[RunFolder]:
        """Returns all folders of runs below `storage.root`."""
        return [cls(folder) for folder in (root / "runs").glob("*/")]

    @classmethod
    def create(cls, config: RunConfig) -> RunFolder:
        """Makes a run's folder, or opens the one of a run that is continued, and returns it.

        The run's record says `running` afterwards, with one attempt more; `config.yaml` holds
        today's settings, and `config_before_attempt_2.yaml` other ones that stood there.

        Raises:
            ValueError: the folder cannot be written, or what lies there is no run.
        """
        run = cls.under(config.storage.root, config.run_id or new_run_id())
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            asked = run._write_settings(settings_as_yaml(config))
        except OSError as error:
            raise ValueError(
                f"storage.root={config.storage.root} cannot be written ({error.strerror}): "
                "choose another with storage.root=FOLDER"
            ) from error
        if run.is_there():
            before = run.read()
            failed = before.status == "failed" and before.reason
            run.add_attempt(f"{AFTER}{before.reason}" if failed else "continued", asked=asked)
            run.update(preset=config.preset, status="running", **_NOTHING_TO_SAY)
        else:
            now = utc_now()
            made = {"run_id": run.run_id, "preset": config.preset, "started_at": now}
            run._write(RunRecord(**made, attempts=(Attempt(started_at=now, reason="started"),)))
        run.update(made_with=made_with())
        hold_reserve(run.path)
        return run

    @property
    def root(self) -> Path:
        """The `storage.root` that the run lies in."""
        return self.path.parent.parent

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

    @property
    def held_out(self) -> HeldOutLog:
        """The run's `held_out/`."""
        return HeldOutLog(self.path / "held_out", self.run_id)

    @property
    def evaluations(self) -> EvaluationFiles:
        """The run's `eval/`."""
        return EvaluationFiles(self.path / "eval")

    def is_there(self) -> bool:
        """Says whether there is a run, or only its name."""
        return (self.path / "run.json").is_file()

    def free_gib(self) -> float:
        """Returns the free space of the run's disk, in GiB."""
        return shutil.disk_usage(self.path).free / 2**30

    def price_of(self, seconds: float) -> str | None:
        """Returns what so many seconds cost by the run's settings, or None without a price."""
        try:
            budget = BudgetConfig.model_validate(read_settings(self.path).get("budget"))
        except ValueError:
            return None  # they cannot be read
        return price_in_words(seconds, budget)

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

        Where even the reserve does not help a full disk, that costs the change and an error in the
        log, not the run.

        Args:
            changes: fields of `RunRecord`; stages in `timings_s` are added to those there.
        """
        with locked(self.path):
            before = self.read()
            if isinstance(stages := changes.get("timings_s"), Mapping):
                changes["timings_s"] = before.timings_s | dict(stages)
            record = RunRecord.model_validate(before.model_dump() | changes)
            try:
                self._write(record)
            except OSError as error:
                _logger.error("run.json could not be written, so it lacks %s: %s", changes, error)
        if record.status != "running":
            drop_reserve(self.path)
        return record

    def add_attempt(self, reason: str, changes: Changes | None = None, *, asked: str = "") -> None:
        """Notes in `run.json` that the run was started again, and why.

        Args:
            reason: `continued`, or the error that a retry is for.
            changes: what the retry changes of the settings; None for nothing.
            asked: what a person changed of them, as one would type it.
        """
        # Without a look at every byte: the attempt itself takes that.
        steps = [found.step for found in list_checkpoints(self.path) if found.resumable]
        attempt = Attempt(
            started_at=utc_now(),
            reason=redact(reason),
            from_step=max(steps, default=0),
            changes=changes or {},
            asked=asked,
        )
        self.update(attempts=(*self.read().attempts, attempt))

    def note(self, sentence: str) -> None:
        """Adds a sentence to the run's `reason`, unless it stands there."""
        reason = self.read().reason
        if sentence not in (reason or ""):
            self.update(reason="; ".join(filter(None, (reason, sentence))))

    def cut_after(self, step: int) -> None:
        """Forgets what was logged past a step, which a resume from its checkpoint redoes.

        Step 0 has no checkpoint: starting from it redoes everything, its own test included.
        """
        last_kept = step if step > 0 else -1
        self.metrics.cut_after(last_kept)
        self.rollouts.cut_after(last_kept)
        self.held_out.cut_after(last_kept)

    def log_to_file(self) -> AbstractContextManager[None]:
        """Appends to `log.txt` what is logged in the block."""
        return log_to_file(self.path / "log.txt")

    def _write_settings(self, text: str) -> str:
        """Writes `config.yaml`; other settings that the run's steps were done with are kept.

        Returns what is other than they, as one would type it.
        """
        file, asked = self.path / "config.yaml", ""
        if file.exists() and (before := file.read_text(encoding="utf-8")) != text:
            attempt = 1 + (len(self.read().attempts) if self.is_there() else 0)
            write_text_atomically(file.with_name(f"config_before_attempt_{attempt}.yaml"), before)
            asked = changed_settings(before, text)
        write_text_atomically(file, text)
        return asked

    def _write(self, record: RunRecord) -> None:
        text = redact(_NUMBERS.sub(_in_one_line, record.model_dump_json(indent=2))) + "\n"
        write_last_words(self.path, lambda: write_text_atomically(self.path / "run.json", text))


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
            **{name: finite_or_none(value) for name, value in metrics.items() if name != "epoch"},
        }
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        try:
            write_last_words(self.path.parent, lambda: append_line(self.path, line))
        except OSError as error:
            _logger.warning("the metrics of step %d could not be written: %s", step, error)

    def read(self) -> list[dict[str, Any]]:
        """Returns the rows, without a line that a crash cut short."""
        if not self.path.exists():
            return []
        rows = (_parse(line) for line in self.path.read_text(encoding="utf-8").splitlines())
        return [row for row in rows if row is not None]

    def last_step(self) -> int:
        """Returns the last step that was logged, 0 before the first."""
        return max((row["step"] for row in self.read()), default=0)

    def values(self, name: str) -> list[float]:
        """Returns a metric step by step, without the steps that lack it."""
        return [row[name] for row in self.read() if row.get(name) is not None]

    def cut_after(self, step: int) -> None:
        """Moves the lines of later steps to `metrics_cut.jsonl`: they will be done again.

        A line that a crash cut short is removed. A full disk costs the keeping and a warning.
        """
        if not self.path.exists():
            return
        kept, cut = list[str](), list[str]()
        for row in self.read():
            (kept if row["step"] <= step else cut).append(json.dumps(row) + "\n")
        if cut:
            try:
                append_line(self.path.with_name("metrics_cut.jsonl"), "".join(cut).encode())
            except OSError as error:
                _logger.warning("%d lines of metrics could not be kept: %s", len(cut), error)
        text = "".join(kept)
        write_last_words(self.path.parent, lambda: write_text_atomically(self.path, text))


def new_run_id() -> str:
    """Returns a name for a run that sorts by time and can be spoken: `20261120-235631-amber`."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.choice(_WORDS)}"


def settings_as_yaml(config: RunConfig) -> str:
    """Returns all settings, resolved, as YAML; they hold no secrets, URLs lose theirs."""
    return redact(yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))


def utc_now() -> str:
    """Returns the time in ISO 8601, UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _in_one_line(match: re.Match[str]) -> str:
    return " ".join(match[0].split()).replace("[ ", "[").replace(" ]", "]")


def _parse(line: str) -> dict[str, Any] | None:
    """Returns a line's object, None if it was cut short."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
