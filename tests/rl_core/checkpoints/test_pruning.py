import logging
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_core.checkpoints.manifest import find_damage
from rl_core.checkpoints.pruning import plan_pruning, prune
from rl_core.checkpoints.store import Checkpoint, save_checkpoint
from tests.support.checkpoint_files import hidden, pointers, save_steps, steps, writer
from tests.support.faults import kills_at_each_event, leave_free
from tests.support.programs import begun


def some_checkpoint(step: int, size_bytes: int = 10, accuracy: float | None = None) -> Checkpoint:
    return Checkpoint(Path(f"step_{step:06d}"), step, accuracy, size_bytes, "2026-01-01")


@pytest.mark.slow
def test_a_prune_killed_at_any_system_event_leaves_only_whole_checkpoints(small_disk):
    for run, kill in kills_at_each_event(small_disk, more_than=20):
        save_steps(run, {1: 0.1, 2: 0.9, 3: 0.2})
        kill(partial(prune, run, keep_last=0, quota_bytes=10))
        assert {2, 3} <= set(steps(run))
        assert {find_damage(path) for path in (run / "checkpoints").glob("step_*")} == {None}
        assert pointers(run) == ("step_000003", "step_000002")
        prune(run, keep_last=0, quota_bytes=10)
        assert steps(run) == [2, 3]
        assert hidden(run) == []


def planned(steps: Iterable[int], size: int, **rules: Any) -> list[tuple[int, bool, str]]:
    """Which checkpoints of one size stay by these rules, newest first, and why."""
    decisions = plan_pruning([some_checkpoint(step, size) for step in steps], **rules)
    return [(d.checkpoint.step, d.keep, d.reason) for d in decisions]


def test_pruning_says_why():
    rules = {"keep_last": 3, "quota_bytes": 4_500_000_000, "roles": [(7, "latest"), (2, "best")]}
    assert planned(range(1, 8), 10**9, **rules) == [
        (7, True, "latest"),
        (6, True, "one of the newest 3 besides latest and best"),
        (5, True, "one of the newest 3 besides latest and best"),
        (4, False, "over the quota of 4.5 GB"),
        (3, False, "over the quota of 4.5 GB"),
        (2, True, "best"),
        (1, False, "over the quota of 4.5 GB"),
    ]
    rules = {"keep_last": 1, "quota_bytes": 10**12, "roles": [(7, "latest"), (7, "best")]}
    assert planned(range(1, 8), 10**9, **rules) == [
        (7, True, "latest and best"),
        (6, True, "one of the newest 1 besides latest and best"),
        *((n, False, "older than the newest 1 besides latest and best") for n in (5, 4, 3, 2, 1)),
    ]


@given(
    sizes=st.lists(st.integers(0, 100), min_size=1, max_size=12),
    data=st.data(),
    keep_last=st.integers(0, 6),
    quota_bytes=st.integers(-50, 700),
)
def test_what_stays_is_latest_best_and_the_longest_newest_row_that_fits(
    sizes, data, keep_last, quota_bytes
):
    checkpoints = [some_checkpoint(step, size) for step, size in enumerate(sizes)]
    newest, highest = (data.draw(st.integers(0, len(sizes) - 1)) for _ in range(2))
    decisions = plan_pruning(
        data.draw(st.permutations(checkpoints)),
        roles=[(newest, "latest"), (highest, "best")],
        keep_last=keep_last,
        quota_bytes=quota_bytes,
    )
    assert [d.checkpoint.step for d in decisions] == list(range(len(sizes)))[::-1]
    kept = {d.checkpoint.step for d in decisions if d.keep}
    always = {newest, highest}
    others = [step for step in reversed(range(len(sizes))) if step not in always]
    row = [step for step in others if step in kept]
    assert always <= kept
    assert row == others[: len(row)]
    assert len(row) <= keep_last
    used = sum(sizes[step] for step in kept)
    assert used <= quota_bytes or kept == always
    if len(row) < min(keep_last, len(others)):
        assert used + sizes[others[len(row)]] > quota_bytes


def test_a_dry_run_decides_the_same_and_deletes_nothing(tmp_path):
    save_steps(tmp_path, {step: 1 / step for step in range(1, 6)})
    dry = prune(tmp_path, keep_last=1, quota_bytes=10**9, dry_run=True)
    assert steps(tmp_path) == [1, 2, 3, 4, 5]
    assert prune(tmp_path, keep_last=1, quota_bytes=10**9) == dry
    assert steps(tmp_path) == [1, 4, 5]
    assert hidden(tmp_path) == []


def test_room_counts_the_coming_checkpoint_within_the_quota(tmp_path):
    save_steps(tmp_path, {1: 0.5, 2: 0.1, 3: 0.1, 4: 0.1}, size=1_000)
    prune(tmp_path, incoming_bytes=2_500, keep_last=9, quota_bytes=5_500)  # 2,500 beside 1, 3 and 4
    assert steps(tmp_path) == [1, 3, 4]
    prune(tmp_path, incoming_bytes=2_500, keep_last=9, quota_bytes=5_499)
    assert steps(tmp_path) == [1, 4]
    save_checkpoint(tmp_path, 5, writer(size=1_000), 0.1)
    prune(tmp_path, incoming_bytes=1_000, keep_last=9, quota_bytes=4_000)
    assert steps(tmp_path) == [1, 4, 5]
    # 5 will be the one beside 6.
    prune(tmp_path, incoming_bytes=1_000, keep_last=1, quota_bytes=10**9)
    assert steps(tmp_path) == [1, 5]
    prune(tmp_path, incoming_bytes=1_000, keep_last=0, quota_bytes=1)
    assert steps(tmp_path) == [1, 5]


def test_room_is_made_for_the_free_disk_before_the_save(small_disk, caplog):
    caplog.set_level(logging.WARNING)
    save_steps(small_disk, {1: 0.1, 2: 0.5, 3: 0.1, 4: 0.1}, size=500_000)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(small_disk, 5, writer(size=500_000), 0.1)
    prune(small_disk, incoming_bytes=520_000, keep_last=9, quota_bytes=10**12)
    assert steps(small_disk) == [2, 3, 4]
    save_checkpoint(small_disk, 5, writer(size=500_000), 0.1)
    assert caplog.text == ""
    prune(small_disk, incoming_bytes=1_900_000, keep_last=9, quota_bytes=10**12)
    assert steps(small_disk) == [2, 5]
    assert "the next checkpoint takes about 1.9 MB but" in caplog.text


def test_what_fills_the_disk_is_beyond_it_as_beyond_the_quota():
    rules = {"roles": [(4, "latest"), (4, "best")], "keep_last": 3, "quota_bytes": 1_000}
    assert planned((1, 2, 3, 4), 10, **rules, disk_bytes=29) == [
        (4, True, "latest and best"),
        (3, True, "one of the newest 3 besides latest and best"),
        (2, False, "the disk has room for 29 B of checkpoints"),
        (1, False, "the disk has room for 29 B of checkpoints"),
    ]


def test_what_is_protected_stays_and_counts_whatever_the_quota():
    roles = [(4, "latest"), (2, "best"), (1, "being read"), (2, "champion")]
    assert planned((1, 2, 3, 4), 10, roles=roles, keep_last=5, quota_bytes=30) == [
        (4, True, "latest"),
        (3, False, "over the quota of 30 B"),
        (2, True, "best and champion"),
        (1, True, "being read"),
    ]


def test_free_disk_is_left_as_far_as_deleting_can(small_disk):
    save_steps(small_disk, {1: 0.1, 2: 0.5, 3: 0.1, 4: 0.1}, size=400_000)
    leave_free(small_disk, 200_000)
    prune(small_disk, keep_last=9, quota_bytes=10**12, min_free_bytes=190_000)
    assert steps(small_disk) == [1, 2, 3, 4]
    prune(small_disk, keep_last=9, quota_bytes=10**12, min_free_bytes=500_000)
    assert steps(small_disk) == [2, 3, 4]
    prune(small_disk, keep_last=9, quota_bytes=10**12, min_free_bytes=10**9)
    assert steps(small_disk) == [2, 4]


READS = """
import sys
from pathlib import Path
from rl_core.checkpoints.store import reading_latest
from rl_core.checkpoints.manifest import find_damage
run, last_step, num_read = Path(sys.argv[1]), int(sys.argv[2]), 0
while True:
    with reading_latest(run) as checkpoint:
        assert find_damage(checkpoint.path) is None, checkpoint
        num_read += 1
        if checkpoint.step == last_step:
            break
print(num_read)
"""


PRUNES = """
import sys
from pathlib import Path
from rl_core.checkpoints.pruning import prune
for _ in range(40):
    prune(Path(sys.argv[1]), keep_last=int(sys.argv[2]), quota_bytes=10**9)
"""


@pytest.mark.chaos
def test_two_pruners_a_saver_and_a_reader_at_the_same_time(tmp_path, survived):
    """Each pruner by another rule; what stays is whole, and latest and best are among it."""
    save_steps(tmp_path, {1: 0.1, 2: 0.1, 3: 0.9, 4: 0.1, 5: 0.1})
    with (
        begun(PRUNES, tmp_path, 0) as one,
        begun(PRUNES, tmp_path, 2) as other,
        begun(READS, tmp_path, 25) as reader,
    ):
        for step in range(6, 26):
            save_checkpoint(tmp_path, step, writer(), 0.1)
            assert steps(tmp_path)[-1] == step
        assert int(reader.communicate(timeout=60)[0]) > 0
        assert [process.wait(60) for process in (reader, one, other)] == [0, 0, 0]
    assert {3, 25} <= set(steps(tmp_path))
    assert {find_damage(path) for path in (tmp_path / "checkpoints").glob("step_*")} == {None}
    assert pointers(tmp_path) == ("step_000025", "step_000003")
    assert hidden(tmp_path) == []
    survived("racing pruners", "two, a saver and a reader")
