"""PRUNING: a run's checkpoints held to a quota, by one process at a time, around those who read.

The plan is retention.py's, pure; here it meets the disk: what lies there, what is damaged, what is
being read, and how much is free.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rl_core.checkpoints.champion import champion_steps
from rl_core.checkpoints.damaged import damaged_folders, give_up_damaged, size_bytes
from rl_core.checkpoints.retention import Checkpoint, PruningDecision, plan_pruning
from rl_core.checkpoints.store import (
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


def prune(
    run_folder: Path,
    *,
    keep_last: int,
    quota_bytes: int,
    keep_every: int | None = None,
    min_free_bytes: int = 0,
    dry_run: bool = False,
) -> list[PruningDecision]:
    """Deletes the checkpoints that need not stay and returns every decision, newest first.

    One that somebody is `reading` stays.

    Args:
        run_folder: `runs/<run_id>`.
        keep_last: see `plan_pruning`.
        quota_bytes: see `plan_pruning`.
        keep_every: see `plan_pruning`.
        min_free_bytes: of the disk, to be kept free as far as deleting can.
        dry_run: only says what would be done.
    """
    folder = checkpoints_folder(run_folder)
    if not folder.is_dir():
        return []
    plan = partial(
        _plan,
        run_folder,
        keep_last=keep_last,
        quota_bytes=quota_bytes,
        keep_every=keep_every,
        spare_bytes=min_free_bytes,
    )
    if dry_run:
        return plan()
    with locked(folder):
        sweep_leftovers(folder)
        _give_up_damaged(run_folder, quota_bytes=quota_bytes, spare_bytes=min_free_bytes)
        return _carry_out(run_folder, plan())


def make_room(
    run_folder: Path,
    incoming_bytes: int,
    *,
    keep_last: int,
    quota_bytes: int,
    keep_every: int | None = None,
    min_free_bytes: int = 0,
) -> list[PruningDecision]:
    """Prunes BEFORE a save, so that the coming checkpoint fits the quota and the free disk.

    The checkpoint to come will be the latest and today's latest one of the newest `keep_last`, so
    one fewer stays beside today's latest and best. These and a champion are never touched, even
    where room is missing: the save may then fail, and the run goes on with what it has.

    Args:
        run_folder: `runs/<run_id>`.
        incoming_bytes: size of the coming checkpoint.
        keep_last: see `plan_pruning`.
        quota_bytes: for all checkpoints, the coming one included.
        keep_every: see `plan_pruning`.
        min_free_bytes: of the disk, to be left free beside the coming checkpoint.

    Returns:
        Every decision, newest first.
    """
    decisions: list[PruningDecision] = []
    if (folder := checkpoints_folder(run_folder)).is_dir():
        with locked(folder):
            sweep_leftovers(folder)
            _give_up_damaged(
                run_folder,
                quota_bytes=quota_bytes - incoming_bytes,
                spare_bytes=incoming_bytes + min_free_bytes,
            )
            plan = _plan(
                run_folder,
                keep_last=max(keep_last - 1, 0),
                quota_bytes=quota_bytes - incoming_bytes,
                keep_every=keep_every,
                spare_bytes=incoming_bytes + min_free_bytes,
                before_save=True,
            )
            decisions = _carry_out(run_folder, plan)
    free = shutil.disk_usage(run_folder).free
    if free < incoming_bytes + min_free_bytes:
        _logger.warning(
            "the next checkpoint takes about %s but %s are free%s",
            disk_size(incoming_bytes),
            disk_size(free),
            ": saving it may fail"
            if free < incoming_bytes
            else f", of which {disk_size(min_free_bytes)} are to stay so (storage.min_free_gib)",
        )
    return decisions


def _plan(
    run_folder: Path,
    *,
    keep_last: int,
    quota_bytes: int,
    keep_every: int | None,
    spare_bytes: int,
    before_save: bool = False,
) -> list[PruningDecision]:
    """Returns the decisions for what is on the disk; latest is the newest that can be resumed.

    Damaged checkpoints are not among them: they neither stay in place of sound ones nor go.

    Args:
        run_folder: `runs/<run_id>`.
        keep_last: see `plan_pruning`.
        quota_bytes: see `plan_pruning`.
        keep_every: see `plan_pruning`.
        spare_bytes: of the disk, that checkpoints are not to take.
        before_save: a newer checkpoint is coming, so a newest that holds the model alone may go.
    """

    def decide(checkpoints: Sequence[Checkpoint]) -> list[PruningDecision]:
        resumable = [checkpoint for checkpoint in checkpoints if checkpoint.resumable]
        highest = best_of(checkpoints)
        protected = _protected(run_folder, checkpoints)
        if checkpoints and not before_save and not checkpoints[-1].resumable:
            protected[checkpoints[-1].step] = "newest model"
        on_disk = sum(checkpoint.size_bytes for checkpoint in checkpoints)
        free = shutil.disk_usage(checkpoints_folder(run_folder)).free
        return plan_pruning(
            checkpoints,
            latest_step=resumable[-1].step if resumable else None,
            best_step=highest.step if highest else None,
            keep_last=keep_last,
            quota_bytes=quota_bytes,
            keep_every=keep_every,
            disk_bytes=on_disk + free - spare_bytes,
            protected=protected,
        )

    checkpoints = list_checkpoints(run_folder)
    decisions = decide(checkpoints)
    if all(decision.keep for decision in decisions):
        return decisions
    # Every byte of the latest is read before another is deleted.
    damaged = find_damaged(run_folder, latest(run_folder))
    return decide([c for c in checkpoints if c.path not in damaged]) if damaged else decisions


def _protected(run_folder: Path, checkpoints: Sequence[Checkpoint]) -> dict[int, str]:
    """Returns why a step stays whatever the quota: a champion, or one being read."""
    try:
        champions = champion_steps(run_folder)
    except ValueError as error:
        _logger.warning("no checkpoint is deleted, any may be a champion: %s", error)
        champions = frozenset(checkpoint.step for checkpoint in checkpoints)
    reasons = {step: ["champion"] for step in champions}
    for checkpoint in checkpoints:
        if _is_being_read(checkpoint.path):
            reasons.setdefault(checkpoint.step, []).append(_BEING_READ)
    return {step: " and ".join(words) for step, words in reasons.items()}


def _carry_out(run_folder: Path, decisions: list[PruningDecision]) -> list[PruningDecision]:
    """Deletes what a plan says, but for what is being read by now; returns what became of it."""
    if decisions:
        move_pointers(run_folder)
    return [
        decision
        if decision.keep or _removed(decision)
        else replace(decision, keep=True, reason=_BEING_READ)
        for decision in decisions
    ]


def _removed(decision: PruningDecision) -> bool:
    path = decision.checkpoint.path
    with alone_in(path, wait=False) as alone:
        if alone:
            remove_folder(path)
            _logger.info("%s deleted: %s", path.name, decision.reason)
    return alone


def _is_being_read(path: Path) -> bool:
    try:
        with alone_in(path, wait=False) as alone:
            return not alone
    except FileNotFoundError:  # pruned a moment ago
        return False


def _give_up_damaged(run_folder: Path, *, quota_bytes: int, spare_bytes: int) -> None:
    """Deletes damaged checkpoints that were set aside, as far as sound ones need their room."""
    folder = checkpoints_folder(run_folder)
    used = sum(checkpoint.size_bytes for checkpoint in list_checkpoints(run_folder))
    used += sum(map(size_bytes, damaged_folders(folder)))
    free = shutil.disk_usage(folder).free
    give_up_damaged(folder, max(used - quota_bytes, spare_bytes - free))
