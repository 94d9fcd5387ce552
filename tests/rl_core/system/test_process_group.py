"""Real processes: a group is found whatever became of its parents; strangers are left alone."""

import os
import secrets
import signal
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rl_core.system.process_group import (
    PROCESS_GROUP,
    dump_stacks,
    end_process_group,
    end_processes,
    environment_of,
    members,
    session_folder,
    sweep_sessions,
)
from tests.support.programs import begun, lives, python

DUMPER = """
    import threading, time
    from rl_core.system.process_group import dump_stacks_on_request

    def waits_for_ever():
        time.sleep(1000)

    dump_stacks_on_request()
    threading.Thread(target=waits_for_ever).start()
    print("ready", flush=True)
"""
OWNER = """
    import subprocess, sys, time
    from rl_core.system.process_group import session_folder

    with session_folder() as folder:
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                         start_new_session=True, stdout=subprocess.DEVNULL)
        print(folder, flush=True)
        time.sleep(1000)
"""


SLEEP = "import time; time.sleep(1000)"


HOLDER = """
    import time
    memory = b"x" * 2**30
    print("ready", flush=True)
    time.sleep(1000)
"""


def said(process: subprocess.Popen[str]) -> str:
    return process.stdout.readline().strip()


@pytest.fixture
def temp_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_the_stacks_of_all_threads_are_dumped_even_of_a_stopped_process():
    group = secrets.token_hex(8)
    mark = {PROCESS_GROUP: group}
    with (
        begun(DUMPER, more=mark, stderr=subprocess.PIPE) as dumper,
        begun(SLEEP, more=mark) as bystander,
    ):
        try:
            assert said(dumper) == "ready"
            dumper.send_signal(signal.SIGSTOP)
            dump_stacks(group)
            text = ""
            while not all(part in text for part in ("threading.py", "waits_for_ever", "Current")):
                text += dumper.stderr.readline()
            assert bystander.poll() is None  # it has no handler: the signal would have ended it
        finally:
            end_process_group(group)
        assert members(group) == []
        assert {dumper.wait(), bystander.wait()} <= {-signal.SIGKILL, 0}


def test_what_does_not_end_is_killed_and_waited_for():
    """The kernel takes a tenth of a second to free 1 GiB."""
    ends = "import time; time.sleep(0.3); raise SystemExit(3)"
    with begun(HOLDER) as holder, begun(ends) as other:
        assert said(holder) == "ready"
        processes = [psutil.Process(one.pid) for one in (holder, other)]
        assert end_processes(processes[1:], patience_s=60)
        assert end_processes(processes)
        assert not any(map(lives, processes))
        assert [process.wait() for process in processes] == [-signal.SIGKILL, 3]


def test_what_a_killed_owner_left_is_swept_and_nothing_else(temp_root):
    (foreign := temp_root / "rl-foreign").mkdir()
    with begun(OWNER) as dead, begun(OWNER) as living:
        orphaned, held = Path(said(dead)), Path(said(living))
        (orphan,) = members((orphaned / PROCESS_GROUP).read_text())
        dead.kill()
        dead.wait()
        assert orphan.is_running()
        sweep_sessions()
        assert not lives(orphan)
        assert sorted(temp_root.iterdir()) == sorted([foreign, held])
        assert len(members((held / PROCESS_GROUP).read_text())) == 1
        assert living.poll() is None
    with session_folder() as folder:  # each start sweeps
        assert sorted(temp_root.iterdir()) == sorted([foreign, folder])
        assert os.environ[PROCESS_GROUP] == (folder / PROCESS_GROUP).read_text()
    assert PROCESS_GROUP not in os.environ
    assert list(temp_root.iterdir()) == [foreign]


INTRUDER = """
    import os, sys
    from pathlib import Path

    folder, group = Path(sys.argv[1]), sys.argv[2]
    os.setgid(65534)
    os.setuid(65534)
    done = []
    for attack in (
        lambda: os.listdir(folder),
        lambda: (folder / "r" / "sockets").rename(folder / "r" / "away"),
        lambda: (folder / "r" / "mine").write_text(""),
        lambda: (folder / "COUNTDOWN_TRAIN_PROCESS_GROUP").unlink(),
        lambda: (folder / "COUNTDOWN_TRAIN_PROCESS_GROUP").write_text(group),
        lambda: folder.rename(folder.with_name("rl-away")),
    ):
        try:
            attack()
        except PermissionError:
            continue
        done.append("got in")
    # What anybody may do in a folder such as /tmp: have others take a mark for one of theirs.
    own = folder.with_name("rl-own")
    own.mkdir(0o700)
    (own / "COUNTDOWN_TRAIN_PROCESS_GROUP").write_text(group)
    folder.with_name("rl-link").symlink_to(folder.with_name("rl-open"))
    (folder.with_name("rl-open") / "COUNTDOWN_TRAIN_PROCESS_GROUP").unlink()
    (folder.with_name("rl-open") / "COUNTDOWN_TRAIN_PROCESS_GROUP").write_text(group)
    print(done)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root becomes another user")
def test_another_user_neither_enters_nor_has_a_run_killed_by_its_mark(temp_root):
    temp_root.chmod(0o1777)  # as /tmp
    group = secrets.token_hex(8)
    with begun(SLEEP, more={PROCESS_GROUP: group}) as victim, session_folder() as folder:
        (folder / "r" / "sockets").mkdir(parents=True)
        for opened in (folder / "r", folder / "r" / "sockets"):
            opened.chmod(0o777)  # as Ray does
        # One of ours that anybody can write in, whose owner is gone.
        (stale := temp_root / "rl-open").mkdir()
        (stale / PROCESS_GROUP).write_text("nobody's")
        stale.chmod(0o777)
        done = python(textwrap.dedent(INTRUDER), folder, group)
        assert done.stdout == "[]\n", done.stderr
        assert (stale / PROCESS_GROUP).read_text() == group
        sweep_sessions()
        assert victim.poll() is None
        assert (folder / PROCESS_GROUP).read_text() == os.environ[PROCESS_GROUP]
        end_process_group(group)


@pytest.mark.parametrize("length", [28, 29, 90])
def test_rays_sockets_have_room_below_any_temporary_folder(length, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        root = Path(parent, "é" * 3 + "x" * (length - len(parent) - 7))
        assert len(os.fsencode(root)) == length
        root.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(root))
        with session_folder() as folder:
            assert (folder.parent == root) is (length == 28)
            session = folder / "r" / "session_2026-11-25_15-48-33_841914_4194304"
            # What the path of a unix socket may have.
            assert len(os.fsencode(session / "sockets" / "plasma_store")) <= 107


def test_a_process_that_still_loads_its_program_is_a_member():
    environment = os.environ | {PROCESS_GROUP: (group := secrets.token_hex(8))}
    for _ in range(200):
        with subprocess.Popen(["sleep", "1000"], env=environment) as process:
            found = environment_of(psutil.Process(process.pid))
            process.kill()
            assert found[PROCESS_GROUP] == group


def test_a_family_ends_though_it_goes_on_to_fork():
    group = secrets.token_hex(8)
    breeder = """
        import os, time
        for _ in range(40):
            if os.fork() == 0:
                os.setsid()
                time.sleep(1000)
            time.sleep(0.02)
    """
    with begun(breeder, more={PROCESS_GROUP: group}):
        while len(members(group)) < 3:
            time.sleep(0.02)
        end_process_group(group)
        assert members(group) == []
