"""Files with what a model wrote: each step's rollouts, and its answers at each test.

    rollouts/step_000101.parquet   rows of `rl_core.schema.ROLLOUTS`
    held_out/step_000100.parquet   rows of `rl_core.schema.EVALUATION`, one per problem

Older versions joined steps in `steps_000001_000100.parquet`, which SQL reads.
Not here: the evaluation after training, whose files in `eval/` hold every problem.
"""

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fractions import Fraction
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rl_core.evaluation.rows import label_rows, read_rows, write_rows
from rl_core.schema import MOST_VALIDATION_ROWS, ROLLOUTS
from rl_core.system.atomic import alone_in, new_file, reading, sweep_leftovers
from rl_core.system.disk_reserve import demand_room
from rl_core.system.plain_parquet import read_table
from rl_core.system.words import disk_size
from rl_core.types import Rollout

_OF_SAMPLES: Final = (
    "step",
    "prompt",
    "response",
    "answer",
    "verdict",
    "score",
    "response_tokens",
    "finish_reason",
    "truth",
)
"""Columns that are read of the few rollouts to show."""
Row = dict[str, Any]
_logger = logging.getLogger(__name__)


class StepFile(NamedTuple):
    """A finished file, named by its step."""

    last_step: int
    path: Path


@dataclass(frozen=True)
class RolloutLog:
    """`rollouts/`: a file per step, deleted only while no process is `reading` the folder."""

    folder: Path
    run_id: str

    def write(
        self,
        step: int,
        epoch: int,
        rollouts: Sequence[Rollout],
        learned: Mapping[str, Sequence[float] | npt.NDArray[Any]],
    ) -> Path | None:
        """Writes the rollouts of one step and returns the file; None and a warning on a full disk.

        `learned` has one number per rollout for some of `reward`, `advantage_mean`, `value_mean`,
        `logprob_gap_mean` and `ref_kl`; NaN and missing columns become null.
        """
        file = self.folder / f"step_{step:06d}.parquet"
        table = _rollout_table(self.run_id, step, epoch, rollouts, learned)
        try:
            demand_room(self.folder.parent)
            with new_file(file) as temporary:
                pq.write_table(table, temporary, compression="zstd")
        except OSError as error:
            _logger.warning("the rollouts of step %d could not be written: %s", step, error)
            return None
        return file

    def age_out(self, quota_bytes: int, *, dry_run: bool = False) -> list[tuple[StepFile, int]]:
        """Deletes the oldest files beyond a quota; returns them with their bytes, oldest first.

        The newest file always stays, and all files stay while a process is reading them.
        """
        files = [(file, file.path.stat().st_size) for file in step_files(self.folder)]
        excess = sum(size for _, size in files) - quota_bytes
        freed_before = accumulate((size for _, size in files), initial=0)
        old = [
            file for file, freed in zip(files[:-1], freed_before, strict=False) if freed < excess
        ]
        if dry_run or not old:
            return old
        with alone_in(self.folder, wait=False) as alone:
            if not alone:
                return []
            for file, _ in old:
                file.path.unlink(missing_ok=True)
        _logger.warning(
            "rollouts of steps %d to %d deleted: over storage.rollout_quota_bytes, %s",
            old[0][0].last_step,
            old[-1][0].last_step,
            disk_size(quota_bytes),
        )
        return old


@dataclass(frozen=True)
class HeldOutLog:
    """`held_out/`: the model's answers to the same problems, a file per test."""

    folder: Path
    run_id: str

    def write(self, step: int, rollouts: Sequence[Rollout], *, mode: str = "greedy") -> None:
        """Writes the first answers of a test; on a full disk they are lost with a warning.

        `rollouts` are one per problem, `mode` is `greedy` or `sampled`.
        """
        model = f"step_{step:06d}" if step else "base"
        rows = [_held_out_row(rollout, mode) for rollout in rollouts[:MOST_VALIDATION_ROWS]]
        try:
            demand_room(self.folder.parent)
            write_rows(
                label_rows(rows, run_id=self.run_id, model=model, step=step),
                self.folder / f"step_{step:06d}.parquet",
            )
        except OSError as error:
            _logger.warning("the answers of the test at %d could not be written: %s", step, error)

    def read(self) -> list[dict[str, Any]]:
        """Returns all rows, test by test."""
        return [row for _, file in step_files(self.folder) for row in read_rows(file)]


def remove_after(folder: Path, step: int) -> None:
    """Removes the files of later steps, and unfinished ones of killed processes."""
    if not folder.is_dir():
        return
    with alone_in(folder, wait=True):
        sweep_leftovers(folder)
        for file in step_files(folder):
            if file.last_step > step:
                file.path.unlink()


def step_files(folder: Path) -> list[StepFile]:
    """Returns a folder's finished files `step_000101.parquet`, by step; a link to one has none."""
    paths = folder.iterdir() if folder.is_dir() and not folder.is_symlink() else ()
    return sorted(
        StepFile(int(match[1]), path)
        for path in paths
        if (match := re.fullmatch(r"(?:steps_\d{6,}|step)_(\d{6,})\.parquet", path.name))
    )


def samples_of_step(folder: Path, step: int | None = None, *, most: int = 8) -> list[Row]:
    """Returns a few rollouts of a step, by default the last; none if none can be read."""
    # None yet, deleted, or cut by a full disk.
    with suppress(OSError, ValueError), reading(folder):
        files = step_files(folder)
        step = files[-1].last_step if step is None and files else step
        for file in files:
            if file.last_step >= (step or 0):
                rows = read_table(file.path, ROLLOUTS, below=folder.parent, columns=_OF_SAMPLES)
                return in_turns(rows.filter(pc.field("step") == step).to_pylist(), most)
    return []


def in_turns(rows: Sequence[Row], most: int) -> list[Row]:
    """Returns at most `most` rows, one per verdict in turn: `correct`, then the most frequent."""
    counts = Counter(str(row["verdict"]) for row in rows)
    verdicts = sorted(counts, key=lambda verdict: (verdict != "correct", -counts[verdict], verdict))
    columns = [[row for row in rows if str(row["verdict"]) == verdict] for verdict in verdicts]
    turns = zip_longest(*columns)
    return [row for turn in turns for row in turn if row is not None][:most]


def finite_or_none(value: float) -> float | None:
    """Returns a number as plain Python (numpy's do not serialise), None for NaN and infinities."""
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def _rollout_table(
    run_id: str,
    step: int,
    epoch: int,
    rollouts: Sequence[Rollout],
    learned: Mapping[str, Sequence[float] | npt.NDArray[Any]],
) -> pa.Table:
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
            "policy_version": rollout.completion.policy_version,
            "prompt": rollout.prompt_text,
            "response": rollout.response_text,
            "answer": rollout.scored.answer,
            "verdict": rollout.scored.verdict,
            "score": rollout.scored.score,
            **{name: finite_or_none(values[i]) for name, values in learned.items()},
            "prompt_tokens": len(rollout.prompt_ids),
            "response_tokens": len(rollout.completion.response_ids),
            "finish_reason": rollout.completion.finish_reason,
            "logprob_sum": float(rollout.completion.logprobs.sum(dtype="float64")),
            "generated_at": now,
            "turns": [
                {
                    "author": "model" if turn.is_model else "env",
                    "tokens": turn.num_tokens,
                    "text": turn.text,
                    "reward": turn.reward,
                }
                for turn in rollout.completion.turns
            ]
            or None,
            "value": as_double(rollout.scored.value),
            "truth": json.dumps(rollout.problem.ground_truth, sort_keys=True, ensure_ascii=False),
            "rewards": [{"name": name, "score": score} for name, score in rollout.scored.rewards]
            or None,
        }
        for i, rollout in enumerate(rollouts)
    ]
    return pa.Table.from_pylist(rows, schema=ROLLOUTS)


def _held_out_row(rollout: Rollout, mode: str) -> dict[str, Any]:
    problem = rollout.problem
    return {
        "prompt_index": problem.index,
        "data_source": problem.data_source,
        "num_solutions": problem.num_solutions,
        "mode": mode,
        "sample_index": 0,
        "prompt": rollout.prompt_text,
        "response": rollout.response_text,
        "response_tokens": len(rollout.completion.response_ids),
        "finish_reason": rollout.completion.finish_reason,
        "ground_truth": json.dumps(problem.ground_truth, sort_keys=True, ensure_ascii=False),
        **asdict(rollout.scored),
    }


def as_double(value: str | None) -> float | None:
    """Returns an answer's value, `18` or `7/2`, as a number; None if it is missing or huge."""
    try:
        number = float(Fraction(value)) if value is not None else math.nan
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return number if math.isfinite(number) else None
