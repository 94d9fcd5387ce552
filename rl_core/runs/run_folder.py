"""A run's folder: its record, settings, metrics and rollouts, all readable while the run is active.

    run.json, config.yaml     replaced whole
    metrics.jsonl             one line per step, appended: see metrics_log.py
    rollouts/, held_out/      see rollout_log.py
    eval/                     see rl_core/evaluation/rows.py
    receipt.jsonl             see receipt.py
    .reserve                  while the run is active: see disk_reserve.py
    .owner, .trainer          locks of the processes at work on it: see lock.py

Local files come first; wandb (`rl_core/tracking/`) can neither stop nor slow a run.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel

from rl_core.checkpoints.store import list_checkpoints
from rl_core.config.operations import BudgetConfig
from rl_core.config.run import RunConfig
from rl_core.evaluation.rows import EvaluationFiles
from rl_core.resources.cost import Spread, price_in_words
from rl_core.resources.oom_recovery import Changes, in_words
from rl_core.runs.metrics_log import MetricsLog, utc_now
from rl_core.runs.receipt import ReceiptLog
from rl_core.runs.rollout_log import HeldOutLog, RolloutLog, remove_after
from rl_core.runs.settings_file import (
    changed_settings,
    read_settings,
    refuse_older,
    refuse_other_tests,
    settings_as_yaml,
)
from rl_core.system.atomic import (
    is_disk_full,
    locked,
    refuse_foreign,
    refuse_links,
    write_text_atomically,
)
from rl_core.system.disk_reserve import RESERVE, demand_room, hold_reserve, write_last_words
from rl_core.system.log_file import log_to_file
from rl_core.system.plain_files import read_json, read_plain
from rl_core.system.redaction import redact
from rl_core.system.versions import made_with
from rl_core.system.words import disk_size

_NOTHING_TO_SAY: dict[str, Any] = {
    "reason": None,
    "finished_at": None,
    "next_step": None,
    "stopped_by": None,
    "last_metrics": {},
}
_logger = logging.getLogger(__name__)

IMPORTED: Final = "imported"
"""The preset of a run that was made from another system's log."""
FROM_PYTHON: Final = "python"
"""The preset of a run of `rl_core.train`, whose accuracies are those of its tests."""
AFTER: Final = "continued after: "
"""Begins an attempt's reason after a failed or interrupted one; the reason of that one follows."""


class Attempt(BaseModel, frozen=True, extra="forbid"):
    """One start of a run: the first, a continuation or a retry."""

    started_at: str
    reason: str
    """`started`, `continued`, `AFTER` and how the last attempt ended, or why a retry was needed."""
    from_step: int = 0
    """The step of the checkpoint that it continues from."""
    changes: Changes = {}
    """Settings that a retry changed (`resources.oom_recovery`); later attempts keep them."""
    overrides: str = ""
    """Settings that the user changed since the last attempt, as overrides to type."""
    startup_s: dict[str, float] = {}
    """Seconds by phase from the command, or the end of the attempt before, to the first response;
    `all`: in all. Ray comes before the processes, which start side by side."""
    made_with: dict[str, str] = {}
    """Versions and machine, see `rl_core.system.versions`."""

    @property
    def changed(self) -> str:
        """All settings that changed since the last attempt, as overrides to type."""
        return " ".join(filter(None, (in_words(self.changes), self.overrides)))


class RunRecord(BaseModel, frozen=True, extra="forbid"):
    """The content of `run.json`."""

    run_id: str
    preset: str
    status: Literal["running", "finished", "failed", "interrupted"] = "running"
    steps: int = 0
    """Training steps done."""
    accuracy_before: float | None = None
    """Accuracy of the base model on the test split, decoded by `evaluation.decoding`."""
    accuracy_after: float | None = None
    reason: str | None = None
    """Why the run has its status, in one sentence, if there is something to say."""
    next_step: str | None = None
    """What to do about a run that did not reach its last step, in one sentence."""
    stopped_by: str | None = None
    """The limit that ended training before its last step: `budget.max_hours=2`. Such a run is
    evaluated and `finished`, and continues if the limit is raised."""
    last_metrics: dict[str, float] = {}
    """If the run failed: the step it reached, and the metrics of its last steps."""
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
    """Settings that the user changed in the preset: by name, the preset's value and the run's."""
    unread: list[str] = []
    """A sentence for each of these that has no effect."""
    planned_step_s: Spread | None = None
    """Seconds per step as estimated before the first, with bounds."""
    planned_from: str | None = None
    """What the estimate rests on, as text."""
    teacher: dict[str, str] = {}
    """The folder of the teacher, by `teacher.path`: `RUN/best` may be another one later."""
    own_code: dict[str, str] = {}
    """sha256 of the files of the user's algorithms and rewards, by `package.module:function`."""
    made_with: dict[str, str] = {}
    """Versions and machine of the latest attempt, see `rl_core.system.versions`."""
    flow_run_id: str | None = None
    """Prefect's name for the latest attempt."""
    night: str | None = None
    """If it is a night: the time for which its latest start was scheduled (ISO 8601)."""
    started_from: str | None = None
    """If it is a night: the model that it started from, and why, in one sentence."""
    note: str | None = None
    """What the user wrote about it: `countdown-train note`."""
    attempts: tuple[Attempt, ...] = ()


@dataclass(frozen=True)
class RunFolder:
    """`<storage.root>/runs/<run_id>`: plain paths inside, so it can be handed to any process."""

    path: Path

    @classmethod
    def under(cls, root: Path, run_id: str) -> Self:
        """Returns the folder of a run below `storage.root`, there or not."""
        return cls(root / "runs" / run_id)

    @classmethod
    def all_under(cls, root: Path) -> list[Self]:
        """Returns all folders of runs below `storage.root`."""
        return [cls(folder) for folder in (root / "runs").glob("*/")]

    @classmethod
    def create(cls, config: RunConfig) -> Self:
        """Makes a run's folder, or opens that of a run that is continued, and returns it.

        Its record then says `running` and has one more attempt. `config.yaml` has the new settings;
        if they differ from the old ones, these move to `config_before_attempt_2.yaml`.

        Raises:
            ValueError: the folder cannot be written, or what is in it is not a run, or is a run of
                an older version or with other tests.
        """
        assert config.run_id is not None, "a run has a name"
        run = cls.under(config.storage.root, config.run_id)
        refuse_older(run.path)
        refuse_other_tests(run.path, config)
        run.make()
        with run._writing():
            overrides = run._write_settings(settings_as_yaml(config))
        if run.is_there():
            run.add_attempt(_why_again(run.read()), overrides=overrides)
            run.update(preset=config.preset, status="running", **_NOTHING_TO_SAY)
        else:
            now = utc_now()
            first = Attempt(started_at=now, reason="started", made_with=made_with())
            run._write(
                RunRecord(
                    run_id=run.run_id, preset=config.preset, started_at=now, attempts=(first,)
                )
            )
        run.update(made_with=run.read().attempts[-1].made_with)
        hold_reserve(run.path)
        return run

    def last_saved(self) -> int:
        """Returns the last step that the run can continue from; 0 before the first."""
        # Whether its files are sound, the resume itself verifies.
        return max((checkpoint.step for checkpoint in list_checkpoints(self.path)), default=0)

    @property
    def root(self) -> Path:
        """The `storage.root` that holds the run."""
        return self.path.parent.parent

    @property
    def run_id(self) -> str:
        """The run's name."""
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
    def receipt(self) -> ReceiptLog:
        """The run's `receipt.jsonl` and `audit.json`."""
        return ReceiptLog(self.path)

    @property
    def evaluations(self) -> EvaluationFiles:
        """The run's `eval/`."""
        return EvaluationFiles(self.path / "eval")

    def is_there(self) -> bool:
        """Returns whether there is a run, or only its name."""
        return (self.path / "run.json").is_file()

    def make(self) -> None:
        """Makes the folder, unless it is there; a ValueError says why it cannot be written."""
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_foreign(self.path)
            refuse_links(self.path)

    def free_gib(self) -> float:
        """Returns the free space of the run's disk, in GiB."""
        return shutil.disk_usage(self.path).free / 2**30

    def price_of(self, seconds: float) -> str | None:
        """Returns what so many seconds cost by the run's settings, or None without a price."""
        try:
            budget = BudgetConfig.model_validate(read_settings(self.path).get("budget"))
        except ValueError:
            return None  # the settings cannot be read
        return price_in_words(seconds, budget)

    def read(self) -> RunRecord:
        """Returns the content of `run.json`; ValueError if it is missing or not a run's record.

        The run is called as its folder, which may have been renamed or copied.
        """
        file = self.path / "run.json"
        remedy = "is cut short or damaged: restore it, or delete the run's folder"
        try:
            content = read_json(file, below=self.path)
        except FileNotFoundError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ValueError(f"{error}, so it {remedy}") from error
        try:
            # What only an older version knew is left out.
            return RunRecord.model_validate(content | {"run_id": self.run_id}, extra="ignore")
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file} is no record of a run, or {remedy}") from error

    def update(self, **changes: object) -> RunRecord:
        """Changes fields of `run.json` in one step and returns the new record.

        If the disk is full even after its reserve is freed, the change is lost and an error is
        logged. The seconds of stages in `timings_s` are added to those already recorded.
        """
        with locked(self.path):
            before = self.read()
            if isinstance(added := changes.get("timings_s"), Mapping):
                changes["timings_s"] = before.timings_s | {
                    stage: round(before.timings_s.get(stage, 0.0) + seconds, 3)
                    for stage, seconds in added.items()
                }
            record = RunRecord.model_validate(before.model_dump() | changes)
            try:
                self._write(record)
            except OSError as error:
                _logger.error("run.json could not be written, so it lacks %s: %s", changes, error)
        if record.status != "running":
            (self.path / RESERVE).unlink(missing_ok=True)
        return record

    def add_attempt(
        self, reason: str, changes: Changes | None = None, *, overrides: str = ""
    ) -> None:
        """Notes in `run.json` that the run was started again, see `Attempt`."""
        attempt = Attempt(
            started_at=utc_now(),
            reason=redact(reason),
            from_step=self.last_saved(),
            changes=changes or {},
            overrides=overrides,
            made_with=made_with(),
        )
        self.update(attempts=(*self.read().attempts, attempt))

    def note_startup(self, seconds: dict[str, float]) -> None:
        """Notes in `run.json` how long the last attempt took to start."""
        *earlier, last = self.read().attempts
        self.update(attempts=(*earlier, last.model_copy(update={"startup_s": dict(seconds)})))

    def note(self, sentence: str) -> None:
        """Adds a sentence to the run's `reason`, unless it is already in it."""
        reason = self.read().reason
        if sentence not in (reason or ""):
            self.update(reason="; ".join(filter(None, (reason, sentence))))

    def cut_after(self, step: int) -> None:
        """Removes the logs of later steps; for step 0 its test too, which a resume repeats."""
        last_kept = step if step > 0 else -1
        self.metrics.cut_after(last_kept)
        remove_after(self.rollouts.folder, last_kept)
        remove_after(self.held_out.folder, last_kept)
        self.receipt.cut_after(last_kept)

    def log_to_file(self) -> AbstractContextManager[None]:
        """Appends to `log.txt` what is logged in the block."""
        return log_to_file(self.path / "log.txt")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ValueError(
                f"storage.root={self.root} cannot be written ({error.strerror or error}): "
                "choose another with storage.root=FOLDER"
            ) from error

    def _write_settings(self, text: str) -> str:
        """Writes `config.yaml`, keeps a copy of different old ones, and returns what changed."""
        file = self.path / "config.yaml"
        before = read_plain(file, below=self.path).decode() if file.exists() else text
        if before != text:
            attempt = 1 + (len(self.read().attempts) if self.is_there() else 0)
            write_text_atomically(file.with_name(f"config_before_attempt_{attempt}.yaml"), before)
        write_text_atomically(file, text)
        return changed_settings(before, text)

    def _write(self, record: RunRecord) -> None:
        text = redact(record.model_dump_json(indent=2)) + "\n"
        write_last_words(self.path, lambda: write_text_atomically(self.path / "run.json", text))


def _why_again(before: RunRecord) -> str:
    """Returns why a run is started again: how it ended, without the advice that follows."""
    if before.status == "interrupted" and before.reason:
        return f"{AFTER}{before.reason.partition(';')[0]}"
    return f"{AFTER}{before.reason}" if before.status == "failed" and before.reason else "continued"


def write_unless_full(
    run: RunFolder, product: str, write: Callable[[], object], *, remedy: str
) -> bool:
    """Writes a product of a run and returns True; on a full disk the run continues without it.

    `write` writes it whole or not at all. Log and record name the product and the `remedy`.
    """
    try:
        demand_room(run.path)
        write()
    except OSError as error:
        if not is_disk_full(error):
            raise
        free = disk_size(shutil.disk_usage(run.path).free)
        sentence = (
            f"{product} was not written, the disk of {run.path} is full ({free} free): "
            f"delete other runs or files there, then {remedy}"
        )
        _logger.warning("%s", sentence)
        run.note(sentence)
        return False
    return True
