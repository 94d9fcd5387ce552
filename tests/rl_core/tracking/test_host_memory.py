import logging
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking import host_memory
from rl_core.tracking.host_memory import HostMemory, Usage, cgroup_rooms, usage_now, warning
from rl_core.workers.cluster import Workers
from tests.support.programs import begun
from tests.support.runs import new_run
from tests.support.waiting import wait_for

GIB = 2**30
MIB = 2**20

HOLD = """
import mmap, os, sys, time
kind, size, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
if kind == "own":
    held = bytearray(b"x" * size)
else:  # pages of a file: shared with whoever maps it too
    held = mmap.mmap(os.open(file, os.O_RDWR), size)
    held[:] = b"x" * size
if len(sys.argv) > 4:
    os.dup2(os.open(sys.argv[4], os.O_WRONLY | os.O_CREAT), 1)
os.write(2, b"ready")
time.sleep(1000)
"""


@contextmanager
def holding(*arguments: object) -> Iterator[None]:
    """A child process that holds so much memory of such a kind."""
    with begun(HOLD, *arguments, stderr=subprocess.PIPE) as child:
        assert child.stderr.read(5) == "ready"
        yield


def test_children_are_counted_by_name_and_pages_of_files_are_not(tmp_path):
    file = tmp_path / "shared"
    file.write_bytes(b"")
    file.open("r+b").truncate(64 * MIB)
    before = usage_now().processes.get("others", 0)
    with (
        holding("own", 64 * MIB, file, tmp_path / "engine_1.log"),
        holding("shared", 64 * MIB, file),
    ):
        usage = usage_now()
    assert 64 * MIB < usage.processes["engine_1"] < 96 * MIB
    assert 0 < usage.processes["others"] - before < 32 * MIB
    assert usage.processes["trainer"] > 16 * MIB
    assert "engine_1" not in usage_now().processes
    assert 0 < usage.available_bytes < usage.limit_bytes


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


def test_the_groups_of_version_2_are_read_up_to_the_mount(tmp_path):
    stat = f"anon 5\ninactive_file {GIB}\nactive_file 7"
    group(tmp_path / "a/b", memory__max="max", memory__current=GIB, memory__stat=stat)
    group(tmp_path / "a", memory__max=8 * GIB, memory__current=6 * GIB, memory__stat=stat)
    group(tmp_path.parent, memory__max=1, memory__current=1, memory__stat=stat)
    assert list(cgroup_rooms("0::/a/b\n", tmp_path)) == [(3 * GIB, 8 * GIB)]


def test_the_groups_of_version_1_are_read_even_where_only_the_mount_is_shown(tmp_path):
    group(
        tmp_path / "memory",
        memory__limit_in_bytes=4 * GIB,
        memory__usage_in_bytes=3 * GIB,
        memory__stat="inactive_file 1\ntotal_inactive_file 0",
    )
    membership = "9:name=systemd:/\n4:cpu,memory:/docker/0123\n1:cpu:/\n"
    assert list(cgroup_rooms(membership, tmp_path)) == [(GIB, 4 * GIB)]
    assert list(cgroup_rooms(membership, tmp_path / "nothing")) == []


@pytest.mark.parametrize("groups", [[], [(0, GIB)], [(0, 2 * GIB), (0, GIB)]])
def test_memory_left_is_that_of_the_tightest_group_or_without_one_the_machines(groups, monkeypatch):
    monkeypatch.setattr(host_memory, "cgroup_rooms", lambda *_: iter(groups))
    left, limit = host_memory.memory_left()
    assert limit == (GIB if groups else psutil.virtual_memory().total)
    assert left == 0 if groups else 0 < left <= limit


def usage(available_gib: float, **processes: float) -> Usage:
    held = {name: int(gib * GIB) for name, gib in processes.items()}
    return Usage(held, GIB // 2, int(available_gib * GIB), 16 * GIB)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return new_run(tmp_path)


def test_peaks_are_told_since_the_last_step_and_of_the_whole_run(run):
    memory = HostMemory(RunConfig(), run, look=lambda: usage(8, learner=1))
    assert memory.measure() == {}
    memory.note(usage(8, learner=5, trainer=1))
    memory.note(usage(7, learner=3, trainer=1))
    assert memory.measure() == {
        "memory/host_gib/learner": 5,
        "memory/host_gib/trainer": 1,
        "memory/host_gib/object_store": 0.5,
        "memory/host_available_gib": 7,
    }
    assert memory.measure()["memory/host_gib/learner"] == 3  # nobody has looked since
    with memory:
        pass
    assert run.read().host_peak_gib == {"learner": 5, "trainer": 1, "object_store": 0.5}
    again = HostMemory(RunConfig(), run, look=lambda: usage(8, learner=6, engine_0=1))
    again.note(usage(8, learner=6, engine_0=1))
    with again:
        pass
    peaks = {"learner": 6, "trainer": 1, "engine_0": 1, "object_store": 0.5}
    assert run.read().host_peak_gib == peaks  # a retry forgets no earlier attempt


def test_each_level_is_warned_of_once(run, caplog):
    memory = HostMemory(RunConfig(), run)
    counts = []
    for available in (3, 2.3, 2.3, 3, 2, 1.2, 1, 8):
        memory.note(usage(available, learner=1))
        counts.append(len(caplog.records))
    assert counts == [0, 1, 1, 1, 1, 2, 2, 2]
    both = HostMemory(RunConfig(), run)
    both.note(usage(0.1, learner=1))
    both.note(usage(0.1, learner=1))
    assert len(caplog.records) == 3
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def test_a_warning_says_who_holds_what_and_which_settings_help():
    assert warning(usage(1.25, learner=8, engine_0=2, trainer=0.5), RunConfig()) == (
        "memory is short: 1.2 of 16.0 GiB are left, and the kernel kills a process when none is. "
        "This run holds 11.0 (learner 8.0, engine_0 2.0, trainer 0.5, object_store 0.5), the rest "
        "of the machine 3.8. What helps: checkpoints.in_background=false or "
        "resources.learner_threads=1 or model.gradient_checkpointing=true or "
        "rollout.max_num_seqs=128"
    )
    large = warning(usage(1, learner=2, engine_0=8), RunConfig(rollout={"num_engines": 2}))
    assert large.endswith("What helps: rollout.max_num_seqs=128 or rollout.num_engines=1")


def test_a_look_that_fails_costs_the_watch_and_not_the_run(run, caplog):
    def fail() -> Usage:
        raise OSError("no /proc here")

    caplog.set_level(logging.ERROR)
    with HostMemory(RunConfig(), run, look=fail) as memory:
        wait_for(lambda: "cannot be watched" in caplog.text)
    assert memory.measure() == {}


@pytest.mark.slow
def test_ray_workers_and_their_object_store_are_told_apart(tiny_model_path, settings):
    config = settings(
        rollout={"engine": "hf", "num_engines": 2},
        resources={"learner_threads": 1},
        algorithm={"kl_mode": "none"},
    )
    with Workers.start(config, tiny_model_path) as workers:
        workers.sync_weights()  # through the object store
        found = usage_now()
    assert found.processes.keys() == {"trainer", "learner", "engine_0", "engine_1", "others"}
    assert all(count > 16 * MIB for count in found.processes.values())
    assert 0 < found.object_store_bytes < 16 * MIB
    assert "learner" not in usage_now().processes
