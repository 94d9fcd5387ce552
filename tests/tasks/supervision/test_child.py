import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from rl_core.errors import OutOfMemory
from rl_core.system.child_process import Channel, unpack
from tasks.supervision.child import Reporter
from tasks.supervision.supervisor import KeptChild, Watched, call_supervised
from tests.support.kept import fails_once
from tests.support.traps import SECRETS, WANDB_KEY, set_traps, sprung, what_is_seen
from tests.support.waiting import wait_for


class UnpicklableError(RuntimeError):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}\nand more")


def test_an_error_arrives_as_it_is_or_at_least_in_words():
    ours, theirs = map(Channel, socket.socketpair())
    reporter = Reporter(theirs)
    reporter.error(OutOfMemory("update", "2 GiB"))
    error = unpack(ours.receive(1)["error"])
    assert (type(error), error.phase, error.detail) == (OutOfMemory, "update", "2 GiB")
    reporter.error(UnpicklableError(1, 2))
    told = unpack(ours.receive(1)["error"])
    assert (type(told), str(told)) == (RuntimeError, "UnpicklableError: 1 and 2")
    ours.socket.close()
    theirs.socket.close()


def test_a_reporter_tells_what_happens_and_outlives_its_listener():
    ours, theirs = map(Channel, socket.socketpair())
    reporter = Reporter(theirs)
    record = logging.LogRecord("rl_core.x", logging.WARNING, "", 0, "%d of 3\nbad", (2,), None)
    reporter.step(1, 9, {"actor/lr": 0.5, "critic/kl": float("nan")})
    reporter.emit(record)
    for _ in range(1000):
        reporter.progress("gen")  # told once: the parent need not hear each
    reporter.progress("learn")
    reporter.done(9)
    theirs.socket.shutdown(socket.SHUT_WR)
    told = []
    with suppress(EOFError):
        while True:
            told.append(ours.receive(1))
    assert told[0]["step"][:2] == [1, 9]
    assert told[0]["step"][2]["actor/lr"] == 0.5
    assert told[0]["step"][2]["critic/kl"] != told[0]["step"][2]["critic/kl"]
    assert told[1] == {"log": ["rl_core.x", logging.WARNING, "2 of 3\nbad"]}
    phases = [message["progress"] for message in told[2:-1]]
    assert list(dict.fromkeys(phases)) == ["gen", "learn"]
    assert len(phases) < 500
    assert unpack(told[-1]["done"]) == 9
    ours.socket.close()
    reporter.done(9)
    theirs.socket.close()


@pytest.mark.parametrize("logs_to_wandb", [False, True])
def test_a_watched_process_has_no_secrets_but_wandbs(tmp_path, monkeypatch, logs_to_wandb):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(traps := set_traps(tmp_path / "cwd"))
    process = Watched("spy", tmp_path, stall_s=120, logs_to_wandb=logs_to_wandb)
    seen = call_supervised(process, what_is_seen, {}, logging.getLogger("test"))
    assert seen == (set(), {WANDB_KEY} if logs_to_wandb else set())
    assert sprung(traps) == ""


def attempt_of(tmp_path: Path) -> int:
    """Returns the child's number."""
    process = Watched("trainer", tmp_path / "workers", stall_s=120)
    return call_supervised(process, fails_once, {}, logging.getLogger("test")) or 0


def failed(tmp_path: Path) -> int:
    with pytest.raises(OutOfMemory) as error:
        attempt_of(tmp_path)
    return int(error.value.detail)


def test_a_child_that_keeps_engines_does_the_next_attempt_and_outlives_no_block(tmp_path):
    with KeptChild.between_attempts():
        first = failed(tmp_path)
        assert psutil.pid_exists(first)
        assert attempt_of(tmp_path) == first
        assert not psutil.pid_exists(first)
        killed = failed(tmp_path)
        psutil.Process(killed).kill()
        # Not its status: the main thread is a zombie before the others are gone.
        wait_for(lambda: os.waitid(os.P_PID, killed, os.WEXITED | os.WNOHANG | os.WNOWAIT))
        last = failed(tmp_path)  # by a new one
        assert last != killed
        assert psutil.pid_exists(last)
    assert not psutil.pid_exists(last)
    assert not psutil.pid_exists(failed(tmp_path))  # there is no block: nobody comes back


@flow
def retrying_flow(folder: Path) -> int:
    retried = task(attempt_of, retries=1, retry_delay_seconds=0, cache_policy=NO_CACHE)
    with KeptChild.between_attempts():
        return retried(folder)


@pytest.mark.slow
def test_a_retry_of_prefects_finds_the_child_of_the_attempt_before(tmp_path, prefect_harness):
    process = retrying_flow(tmp_path)
    log = (tmp_path / "workers" / "trainer.log").read_text()
    assert f"out of memory in update_actor: {process}\n" in log
    assert not psutil.pid_exists(process)
