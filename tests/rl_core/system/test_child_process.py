import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from rl_core.system.child_process import Channel, Child, how_it_ended
from tests.support.programs import lives
from tests.support.traps import SECRETS, WANDB_KEY, secrets_of, set_traps, sprung

CHILD = """
import os, subprocess, sys, time
from rl_core.system.child_process import channel_to_parent

channel = channel_to_parent()
print("a banner" * 100_000, flush=True)
assert sys.stdin.read() == ""
say = channel.receive()["do"]
if say == "echo":
    while True:
        channel.send({"said": channel.receive(), "arguments": sys.argv[1:]})
if say == "again":
    end = channel.socket
    end.set_inheritable(True)
    program = "from rl_core.system.child_process import channel_to_parent as c; c().send({})"
    os.execv(sys.executable, [sys.executable, "-c", program, str(end.fileno())])
if say == "leave":
    os.system("sleep 100.8 &")
    channel.send({"last": "x" * 300_000})
    os._exit(3)
if say == "start":
    sleep = [sys.executable, "-c", "import time; time.sleep(100.9)"]
    both = [subprocess.Popen(sleep), subprocess.Popen(sleep, start_new_session=True)]
    channel.send({"pids": [process.pid for process in both]})
    time.sleep(100)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    (tmp_path / "some_child.py").write_text(CHILD)
    traps = set_traps(tmp_path / "cwd")
    with pytest.MonkeyPatch.context() as patch, (tmp_path / "output").open("wb") as output:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ["PYTHONPATH"]]))
        patch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
        patch.setenv(WANDB_KEY, SECRETS[WANDB_KEY])
        patch.chdir(traps)
        started = Child("some_child", "an argument", 3, output=output, needs=["wandb"])
    yield started
    assert sprung(traps) == ""
    started.kill()
    started.kill()  # harmless
    started.close()
    started.close()
    assert (tmp_path / "output").read_bytes().startswith(b"a banner")


@pytest.fixture
def ends() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), theirs


def test_it_sees_no_secret_that_it_does_not_need(child):
    child.send({"do": "echo"})
    child.send({})
    child.receive(60)  # it runs its own program by now
    (seen,) = secrets_of([psutil.Process(child.process.pid)]).values()
    assert seen == {WANDB_KEY}


def test_messages_arrive_whole_whatever_the_child_prints(child):
    child.send({"do": "echo"})
    for message in ({}, {"text": "ü\n\x00\ud800" * 100_000, "number": 0.1, "path": Path("/a")}):
        child.send(message)
        answer = child.receive(60)
        expected = message | {name: "/a" for name in message if name == "path"}
        assert answer == {"said": expected, "arguments": ["an argument", "3"]}


def test_a_program_that_takes_the_childs_place_goes_on_with_the_channel(child):
    child.send({"do": "again"})
    assert child.receive(60) == {}


def test_what_a_child_said_last_is_read_and_then_its_end(child):
    """What it started and left behind does not look like it."""
    child.send({"do": "leave"})
    assert len(child.receive(60)["last"]) == 300_000
    with pytest.raises(EOFError):
        child.receive(60)
    assert child.process.wait(60) == 3


def test_a_kill_takes_all_that_the_child_started(child):
    child.send({"do": "start"})
    started = [psutil.Process(pid) for pid in child.receive(60)["pids"]]
    child.kill()
    assert not any(map(lives, started))
    with pytest.raises(EOFError):
        child.receive(60)
    assert child.process.returncode == -signal.SIGKILL


def test_half_a_message_is_kept_and_is_no_reason_to_wait_longer(ends):
    channel, other = ends
    for part in (b'{"a"', b": 1", b'}\n{"b": 2}\n{"c'):
        with pytest.raises(TimeoutError):
            channel.receive(0.05)
        other.sendall(part)
    assert [channel.receive(1), channel.receive(1)] == [{"a": 1}, {"b": 2}]
    flood = "import socket\ns = socket.socket(fileno=0)\nwhile True: s.sendall(b'x' * 1000)"
    start = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", flood], stdin=other, stderr=-3) as process:
        with pytest.raises(TimeoutError):
            channel.receive(1.0)
        process.kill()
    assert time.monotonic() - start < 30


def test_what_nobody_reads_is_not_waited_for(ends):
    channel, other = ends
    with pytest.raises(TimeoutError):
        channel.send({"text": "x" * 10_000_000}, timeout_s=0.1)
    other.close()
    with pytest.raises(EOFError):
        channel.receive()
    with pytest.raises(OSError, match="Broken pipe"):
        channel.send({})


@pytest.mark.parametrize("line", [b"\xff\n", b"{\n", b"[1]\n", b"\n"])
def test_what_is_no_message_is_told_and_passed_over(line, ends):
    channel, other = ends
    other.sendall(line + b'{"a": 1}\n')
    with pytest.raises(ValueError, match=r"decode|Expecting|is no message"):
        channel.receive(1)
    assert channel.receive(1) == {"a": 1}


def test_how_a_process_ended_in_words():
    said = [how_it_ended(code) for code in (0, 3, -9, -40)]
    assert said == ["exit code 0", "exit code 3", "killed by SIGKILL", "killed by signal 40"]
