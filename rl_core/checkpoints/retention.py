"""Which checkpoints stay: a pure plan, with a reason for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_core.system.words import disk_size


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on the disk whose manifest can be read and whose files have their sizes."""

    path: Path
    step: int
    accuracy: float | None
    size_bytes: int
    created_at: str
    resumable: bool = True
    """False: it holds the model alone."""
    score: float | None = None


@dataclass(frozen=True)
class PruningDecision:
    """What happens to one checkpoint, and why."""

    checkpoint: Checkpoint
    keep: bool
    reason: str


def plan_pruning(
    checkpoints: Sequence[Checkpoint],
    *,
    latest_step: int | None,
    best_step: int | None,
    keep_last: int,
    quota_bytes: int,
    keep_every: int | None = None,
    disk_bytes: int | None = None,
    protected: Mapping[int, str] | None = None,
) -> list[PruningDecision]:
    """Returns what to do with each checkpoint, newest first. Pure.

    Latest, best and protected ones always stay, even above the quota. Beside them stay the newest
    `keep_last`, then those of every `keep_every` steps, newest first, as long as all that stays has
    room; the first that has none ends the row, so that what stays has no gaps.

    Args:
        checkpoints: in any order.
        latest_step: the one a resume would load.
        best_step: the one of the highest accuracy.
        keep_last: how many stay beside those that always do.
        quota_bytes: for all that stay; zero or less leaves room only for those that always do.
        keep_every: older ones of a step that it divides stay too; None: no others.
        disk_bytes: what all that stay may take without filling the disk; None: anything.
        protected: why a step always stays (a champion, one being read), beside latest and best.
    """
    roles: dict[int, list[str]] = {}
    for step, role in ((latest_step, "latest"), (best_step, "best"), *(protected or {}).items()):
        if step is not None:
            roles.setdefault(step, []).append(role)
    used = sum(c.size_bytes for c in checkpoints if c.step in roles)
    decisions, num_newest, no_room = [], 0, ""
    for checkpoint in sorted(checkpoints, key=lambda c: c.step, reverse=True):
        keep, reason = False, f"older than the newest {keep_last} beside latest and best"
        is_newest = num_newest < keep_last
        if checkpoint.step in roles:
            keep, reason = True, " and ".join(roles[checkpoint.step])
        elif is_newest or (keep_every is not None and checkpoint.step % keep_every == 0):
            after = used + checkpoint.size_bytes
            no_room = no_room or _why_no_room(after, quota_bytes, disk_bytes)
            keep, reason = not no_room, no_room
            if keep:
                used, num_newest = after, num_newest + is_newest
                reason = f"of every {keep_every} steps, within the quota"
                if is_newest:
                    reason = f"one of the newest {keep_last} beside latest and best"
        decisions.append(PruningDecision(checkpoint, keep, reason))
    return decisions


def _why_no_room(used_bytes: int, quota_bytes: int, disk_bytes: int | None) -> str:
    """Returns what so many bytes exceed, or nothing."""
    if used_bytes > quota_bytes:
        return f"over the quota of {disk_size(quota_bytes)}"
    if disk_bytes is not None and used_bytes > disk_bytes:
        return f"the disk has room for {disk_size(disk_bytes)} of checkpoints"
    return ""
