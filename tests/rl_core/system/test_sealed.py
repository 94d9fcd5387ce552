import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rl_core.system.sealed import NotSealed, TooSlow, sealed
from tests.support.programs import python

CODE = compile("1", "<string>", "exec")
FLAG = {"is_changed": False}


def test_it_returns_the_score_and_an_error_scores_nothing():
    assert sealed(lambda: 0.25, cpu_s=60) == 0.25
    assert sealed(lambda: 1 / 0, cpu_s=60) == 0.0


@pytest.mark.parametrize(
    ("tried", "attack"),
    [
        ("compile", lambda made: eval(f"open({str(made)!r}, 'w')")),  # the attack
        ("exec", lambda made: exec(CODE)),
        ("open", lambda made: made.open("w")),
        ("os.utime", lambda made: made.touch()),
        ("open", lambda made: Path("/proc/self/environ").read_bytes()),
        ("os.system", lambda made: os.system(f"touch {made}")),
        ("subprocess.Popen", lambda made: subprocess.run(["touch", made])),
        ("os.posix_spawn", lambda made: os.posix_spawn("/bin/touch", ["touch", str(made)], {})),
        ("os.exec", lambda made: os.execv("/bin/touch", ["touch", str(made)])),
        ("os.fork", lambda made: os.fork()),
        ("os.mkdir", lambda made: made.mkdir()),
        ("os.rename", lambda made: Path(__file__).rename(made)),
        ("os.symlink", lambda made: made.symlink_to(__file__)),
        ("shutil.rmtree", lambda made: shutil.rmtree(made.parent)),
        ("os.kill", lambda made: os.kill(os.getppid(), signal.SIGTERM)),
        ("os.putenv", lambda made: os.environ.__setitem__("PATH", str(made))),
        ("socket.__new__", lambda made: socket.socket()),
        ("ctypes.dlopen", lambda made: ctypes.CDLL(None)),
        ("sys.addaudithook", lambda made: sys.addaudithook(print)),
    ],
)
def test_whatever_is_more_than_computing_ends_it(tmp_path, tried, attack):
    made = tmp_path / "made"
    with pytest.raises(NotSealed, match=f"tried {tried}, which is forbidden"):
        sealed(lambda: bool(attack(made)), cpu_s=60)
    assert not made.exists()


def test_nothing_outlives_it():
    def change() -> float:
        FLAG["is_changed"] = True
        return 1.0

    assert sealed(change, cpu_s=60) == 1.0
    assert not FLAG["is_changed"]


def test_an_endless_call_ends():
    def work() -> float:
        while True:
            pass

    with pytest.raises(TooSlow, match=r"no score within 0\.1 CPU seconds"):
        sealed(work, cpu_s=0.1)
    with pytest.raises(TooSlow):  # in one instruction, which no signal's handler would interrupt
        sealed(lambda: 9**9**9, cpu_s=0.1)


def test_a_death_is_told():
    with pytest.raises(NotSealed, match="killed by signal 6"):
        sealed(os.abort, cpu_s=60)


def test_no_descriptor_of_the_parents_is_at_hand():
    ours, theirs = os.pipe()

    def write() -> float:
        return float(os.write(theirs, b"a score of its own"))

    assert sealed(write, cpu_s=60) == 0.0  # a bad descriptor
    os.close(theirs)
    assert os.read(ours, 100) == b""
    os.close(ours)


def test_where_the_kernel_helps_files_are_safe_without_the_hook(tmp_path):
    code = f"""
from pathlib import Path
from rl_core.system.sealed import stay_among_own
print(stay_among_own(compute_only=True))
Path({str(tmp_path / "made")!r}).touch()
"""
    done = python(code)
    if done.stdout == "False\n":
        pytest.skip("the kernel is older than Linux 6.12")
    assert "PermissionError" in done.stderr
    assert not (tmp_path / "made").exists()
