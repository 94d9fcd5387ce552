"""A run's rollouts on the disk: a parquet file per step, later one per hundred steps.

    rollouts/step_000101.parquet          as training writes them
    rollouts/steps_000001_000100.parquet  joined by `compact`, the same rows in the same order

A step is in one place for every reader: what a joined file covers and a killed `compact` left is
passed over (`rollout_files`), and files are exchanged only while nobody is `reading` the folder.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rl_core.schema import ROLLOUTS
from rl_core.system.atomic import TEMPORARY_PREFIX, alone_in, new_file, sweep_leftovers
from rl_core.system.disk_reserve import demand_room, may_write, write_last_words
from rl_core.system.words import disk_size
from rl_core.types import Rollout

LEARNED_COLUMNS = ("reward", "advantage_mean", "value_mean", "logprob_gap_mean", "ref_kl")
"""Columns of a rollout row that the learner fills; those it does not give are null."""
BLOCK_STEPS: Final = 100
"""Steps per joined file."""
_ROW_GROUP_ROWS: Final = 10_000
"""At least, but for the last: smaller groups pack worse, and larger ones lie in memory at once."""
_FILE = re.compile(r"steps?_(\d{6,})(?:_(\d{6,}))?\.parquet")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RolloutFile:
    """A finished file of rollouts, and which steps it covers."""

    path: Path
    first: int
    last: int

    @property
    def is_joined(self) -> bool:
        """Whether it was made by `compact`, even if of few steps."""
        return self.path.name.startswith("steps_")


@dataclass(frozen=True)
class RolloutLog:
    """`rollouts/`: parquet files in `rl_core.schema.ROLLOUTS`, one per step at first."""

    folder: Path
    run_id: str

    def write(
        self,
        step: int,
        epoch: int,
        rollouts: Sequence[Rollout],
        learned: Mapping[str, Sequence[float] | npt.NDArray[Any]],
    ) -> Path | None:
        """Writes the rollouts of one step and returns the file.

        A full disk costs the file (then None) and a warning, not the run.

        Args:
            step: the step that learned from them.
            epoch: pass over the data, from 0.
            rollouts: in the order of `learned`.
            learned: columns of `LEARNED_COLUMNS`, one number per rollout; NaN becomes null.

        Raises:
            ValueError: `learned` holds another column, or not one number per rollout.
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

    def compact(self, *, last_too: bool = False) -> int:
        """Joins the files of each hundred steps into one, and returns how many files vanished.

        Does nothing while somebody reads them. A full disk, or a file that cannot be read, costs
        the joining and a warning; the files then stay as they are.

        Args:
            last_too: also the last hundred, full or not: no step follows, as far as known.
        """
        before = len(rollout_files(self.folder))
        if not before:
            return 0
        with alone_in(self.folder, wait=False) as alone:
            if not alone:
                return 0
            self._sweep_compaction()
            for files in _blocks_to_join(rollout_files(self.folder), last_too=last_too):
                try:
                    self._join(files)
                except (OSError, pa.ArrowException) as error:
                    first, last = files[0].first, files[-1].last
                    _logger.warning("rollouts %d to %d were not joined: %s", first, last, error)
        return before - len(rollout_files(self.folder))

    def age_out(self, quota_bytes: int, *, dry_run: bool = False) -> list[tuple[RolloutFile, int]]:
        """Deletes the oldest files beyond a quota; returns them with their bytes, oldest first.

        The newest file stays in any case, and all stay while somebody reads them.

        Args:
            quota_bytes: that all files may take.
            dry_run: only says what would be deleted.
        """
        sizes = [(file, file.path.stat().st_size) for file in rollout_files(self.folder)]
        excess = sum(size for _, size in sizes) - quota_bytes
        old = []
        for file, size in sizes[:-1]:
            if excess <= 0:
                break
            old.append((file, size))
            excess -= size
        if dry_run or not old:
            return old
        with alone_in(self.folder, wait=False) as alone:
            if not alone:
                return []
            for file, _ in old:
                file.path.unlink(missing_ok=True)
        _logger.warning(
            "rollouts of steps %d to %d deleted: over storage.rollout_quota_bytes, %s",
            old[0][0].first,
            old[-1][0].last,
            disk_size(quota_bytes),
        )
        return old

    def cut_after(self, step: int) -> None:
        """Removes the rows of later steps, and what a killed write left."""
        if not self.folder.is_dir():
            return
        with alone_in(self.folder, wait=True):
            sweep_leftovers(self.folder)
            self._sweep_compaction()
            for file in rollout_files(self.folder):
                if file.first > step:
                    file.path.unlink()
                elif file.last > step:
                    self._cut(file, step)

    def _join(self, files: Sequence[RolloutFile]) -> None:
        """Exchanges files for one of the same rows; a reader sees the old ones or the new one."""
        if not may_write(self.folder.parent):
            return
        name = f"steps_{files[0].first:06d}_{files[-1].last:06d}.parquet"
        with new_file(self.folder / name) as temporary:
            num_rows = _concatenate([file.path for file in files], temporary)
            if pq.read_metadata(temporary).num_rows != num_rows:
                raise OSError(f"{temporary} does not hold the {num_rows} rows written to it")
        for file in files:
            file.path.unlink()

    def _cut(self, file: RolloutFile, last: int) -> None:
        """Leaves a joined file's rows up to a step, in one rename, and then names it so."""
        kept = pq.read_table(file.path, filters=[("step", "<=", last)], partitioning=None)

        def replace_it() -> None:
            with new_file(file.path) as temporary:
                pq.write_table(kept, temporary, compression="zstd")

        try:
            write_last_words(self.folder.parent, replace_it)
        except OSError as error:
            # Rows that a resume makes again would count twice: better none of them.
            _logger.warning("%s deleted, as it could not be cut: %s", file.path.name, error)
            file.path.unlink()
            return
        file.path.rename(file.path.with_name(f"steps_{file.first:06d}_{last:06d}.parquet"))

    def _sweep_compaction(self) -> None:
        """Removes what a killed `compact` left: half a joined file, or the files that it joined."""
        for half in self.folder.glob(f"{TEMPORARY_PREFIX}steps_*"):
            half.unlink()
        seen = {file.path for file in rollout_files(self.folder)}
        for path in self.folder.glob("step_*.parquet"):
            if path not in seen and _FILE.fullmatch(path.name):
                path.unlink()


def rollout_files(folder: Path) -> list[RolloutFile]:
    """Returns a folder's finished files by step, without those that a joined file covers."""
    paths = folder.iterdir() if folder.is_dir() else ()
    files = [
        RolloutFile(path, int(match[1]), int(match[2] or match[1]))
        for path in paths
        if (match := _FILE.fullmatch(path.name))
    ]
    joined = [file for file in files if file.is_joined]
    return sorted(
        (
            file
            for file in files
            if file.is_joined or not any(j.first <= file.first <= j.last for j in joined)
        ),
        key=lambda file: file.first,
    )


def finite_or_none(value: float) -> float | None:
    """Returns a number as plain Python (numpy's do not serialise), None for NaN and infinities."""
    if isinstance(value, int):
        return value
    return float(value) if math.isfinite(value) else None


def _blocks_to_join(files: Sequence[RolloutFile], *, last_too: bool) -> list[list[RolloutFile]]:
    """Returns the single files of each hundred steps that is complete, if there are several."""
    blocks: dict[int, list[RolloutFile]] = {}
    for file in files:
        if not file.is_joined:
            blocks.setdefault((file.first - 1) // BLOCK_STEPS, []).append(file)
    newest = files[-1].last // BLOCK_STEPS if files else 0  # the first block that may yet grow
    return [
        block
        for number, block in blocks.items()
        if len(block) > 1 and (last_too or number < newest)
    ]


def _concatenate(files: Sequence[Path], target: Path) -> int:
    """Writes all rows of some files into one, and returns how many there are."""
    num_rows, waiting = 0, []
    with pq.ParquetWriter(target, ROLLOUTS, compression="zstd") as writer:
        for file in files:
            waiting.append(pq.read_table(file, schema=ROLLOUTS, partitioning=None))
            num_rows += waiting[-1].num_rows
            if sum(table.num_rows for table in waiting) >= _ROW_GROUP_ROWS or file == files[-1]:
                together = pa.concat_tables(waiting)
                writer.write_table(together, row_group_size=max(together.num_rows, 1))
                waiting.clear()
    return num_rows


def _rollout_table(
    run_id: str,
    step: int,
    epoch: int,
    rollouts: Sequence[Rollout],
    learned: Mapping[str, Sequence[float] | npt.NDArray[Any]],
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
            "policy_version": rollout.completion.policy_starts[0][1],
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
            "policy_runs": [
                {"policy_version": policy, "tokens": tokens}
                for policy, tokens in rollout.completion.policy_runs
            ],
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
            "value": _as_double(rollout.scored.value),
            "truth": json.dumps(rollout.problem.ground_truth, sort_keys=True, ensure_ascii=False),
        }
        for i, rollout in enumerate(rollouts)
    ]
    return pa.Table.from_pylist(rows, schema=ROLLOUTS)


def _as_double(value: str | None) -> float | None:
    """Returns an answer's value, `18` or `7/2`, as a number; None where it has none or is huge."""
    try:
        number = float(Fraction(value)) if value is not None else math.nan
    except (ValueError, ZeroDivisionError, OverflowError):
        return None
    return number if math.isfinite(number) else None
