"""Deletes a run's checkpoints above a quota, by one process at a time and none that is read."""

import logging
import shutil
from collections.abc import Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rl_core.checkpoints.champion import champion_steps
from rl_core.checkpoints.store import (
    Checkpoint,
    best_of,
    checkpoints_folder,
    find_damaged,
    latest,
    list_checkpoints,
    move_pointers,
)
from rl_core.system.atomic import alone_in, locked, remove_folder, sweep_leftovers
from rl_core.system.words import disk_size

_BEING_READ = "being read by another process"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PruningDecision:
    """What happens to one checkpoint, and why."""

    checkpoint: Checkpoint
    keep: bool
    reason: str


def prune(
    run_folder: Path,
    *,
    keep_last: int,
    quota_bytes: int,
    min_free_bytes: int = 0,
    incoming_bytes: int = 0,
    dry_run: bool = False,
) -> list[PruningDecision]:
    """Deletes the checkpoints that need not stay and returns every decision, newest first.

    The rules are those of `plan_pruning`; a checkpoint that is being read stays too.
    `min_free_bytes` of the disk are kept free, if deleting can do it. `dry_run` deletes nothing.

    `incoming_bytes` is the size of the checkpoint that is saved next. It will be the latest, and
    the present latest will be one of the newest `keep_last`: so one fewer stays besides latest and
    best. If it still has no room, a warning is logged: the save may fail, and the run continues.
    """
    decisions: list[PruningDecision] = []
    spare_bytes = incoming_bytes + min_free_bytes
    if (folder := checkpoints_folder(run_folder)).is_dir():
        with nullcontext() if dry_run else locked(folder):
            if not dry_run:
                sweep_leftovers(folder)
            decisions = _plan(
                run_folder,
                keep_last=max(keep_last - 1, 0) if incoming_bytes else keep_last,
                quota_bytes=quota_bytes - incoming_bytes,
                spare_bytes=spare_bytes,
            )
            if decisions and not dry_run:
                move_pointers(run_folder)
                decisions = [_carried_out(decision) for decision in decisions]
    if incoming_bytes and (free := shutil.disk_usage(run_folder).free) < spare_bytes:
        _logger.warning(
            "the next checkpoint takes about %s but %s are free%s",
            disk_size(incoming_bytes),
            disk_size(free),
            ": saving it may fail"
            if free < incoming_bytes
            else f", of which {disk_size(min_free_bytes)} must stay free (storage.min_free_gib)",
        )
    return decisions


def _plan(
    run_folder: Path, *, keep_last: int, quota_bytes: int, spare_bytes: int
) -> list[PruningDecision]:
    """Returns decisions for the sound checkpoints that leave `spare_bytes` of the disk free."""

    def decide(checkpoints: Sequence[Checkpoint]) -> list[PruningDecision]:
        highest = best_of(checkpoints)
        on_disk = sum(checkpoint.size_bytes for checkpoint in checkpoints)
        free = shutil.disk_usage(checkpoints_folder(run_folder)).free
        roles = [(checkpoint.step, "latest") for checkpoint in checkpoints[-1:]]
        if highest is not None:
            roles.append((highest.step, "best"))
        return plan_pruning(
            checkpoints,
            roles=[*roles, *_protected(run_folder, checkpoints).items()],
            keep_last=keep_last,
            quota_bytes=quota_bytes,
            disk_bytes=on_disk + free - spare_bytes,
        )

    checkpoints = list_checkpoints(run_folder)
    decisions = decide(checkpoints)
    if all(decision.keep for decision in decisions):
        return decisions
    # The latest checkpoint is verified completely before another is deleted.
    damaged = find_damaged(run_folder, latest(run_folder))
    return decide([c for c in checkpoints if c.path not in damaged]) if damaged else decisions


def _protected(run_folder: Path, checkpoints: Sequence[Checkpoint]) -> dict[int, str]:
    """Returns, by step, why a checkpoint stays at any quota: it is a champion, or being read."""
    try:
        champions = champion_steps(run_folder)
    except ValueError as error:
        _logger.warning("no checkpoint is deleted, any may be a champion: %s", error)
        champions = frozenset(checkpoint.step for checkpoint in checkpoints)
    reasons = {step: ["champion"] for step in champions}
    for checkpoint in checkpoints:
        with suppress(FileNotFoundError), alone_in(checkpoint.path, wait=False) as alone:
            if not alone:
                reasons.setdefault(checkpoint.step, []).append(_BEING_READ)
    return {step: " and ".join(words) for step, words in reasons.items()}


def _carried_out(decision: PruningDecision) -> PruningDecision:
    """Deletes a checkpoint as decided, unless it is being read now; returns the final decision."""
    if decision.keep:
        return decision
    path = decision.checkpoint.path
    with alone_in(path, wait=False) as alone:
        if alone:
            remove_folder(path)
            _logger.info("%s deleted: %s", path.name, decision.reason)
    return decision if alone else replace(decision, keep=True, reason=_BEING_READ)


def plan_pruning(
    checkpoints: Sequence[Checkpoint],
    *,
    roles: Iterable[tuple[int, str]],
    keep_last: int,
    quota_bytes: int,
    disk_bytes: int | None = None,
) -> list[PruningDecision]:
    """Returns what to do with each checkpoint, newest first. Pure.

    Those with `roles`, by step (latest, best, champion), always stay, even above `quota_bytes`. The
    newest `keep_last` others stay too, as long as all that stay fit into the quota and into
    `disk_bytes`. After the first that does not fit, no older one stays: there are no gaps.
    """
    stays: dict[int, list[str]] = {}
    for step, role in roles:
        stays.setdefault(step, []).append(role)
    used = sum(c.size_bytes for c in checkpoints if c.step in stays)
    decisions: list[PruningDecision] = []
    num_newest = 0
    no_room = ""
    for checkpoint in sorted(checkpoints, key=lambda c: c.step, reverse=True):
        keep = checkpoint.step in stays
        reason = f"older than the newest {keep_last} besides latest and best"
        if keep:
            reason = " and ".join(stays[checkpoint.step])
        elif num_newest < keep_last:
            after = used + checkpoint.size_bytes
            no_room = no_room or _why_no_room(after, quota_bytes, disk_bytes)
            keep = not no_room
            reason = no_room
            if keep:
                used = after
                num_newest += 1
                reason = f"one of the newest {keep_last} besides latest and best"
        decisions.append(PruningDecision(checkpoint, keep, reason))
    return decisions


def _why_no_room(used_bytes: int, quota_bytes: int, disk_bytes: int | None) -> str:
    if used_bytes > quota_bytes:
        return f"over the quota of {disk_size(quota_bytes)}"
    if disk_bytes is not None and used_bytes > disk_bytes:
        return f"the disk has room for {disk_size(disk_bytes)} of checkpoints"
    return ""
