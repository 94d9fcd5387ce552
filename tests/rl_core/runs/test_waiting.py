"""What a run waits for: noted by one process, read and worded by another that trusts no file."""

import json
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.checkpoints.background_save import BackgroundSave
from rl_core.config.operations import CheckpointsConfig
from rl_core.config.rollout import RewardConfig
from rl_core.envs.gsm8k import Gsm8k
from rl_core.rewards.scoring import NotedRewards, start_rewards
from rl_core.runs.waiting import read_waits, startup_in_words, step_in_words, waits_in_words
from rl_core.system import waits as waits_module
from rl_core.system.waits import OF_TRAINING, Waits
from rl_core.types import Problem
from tests.support.faults import leave_free, mounted_small_disk
from tests.support.waiting import wait_for

NOTICED_S = 10.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of the process that writes; a test moves it on."""
    now = [1_000.0]
    monkeypatch.setattr(waits_module.time, "monotonic", lambda: now[0])
    return now


def test_the_phase_its_age_and_the_oldest_unfinished_things_by_hand(tmp_path, clock):
    heard: list[str] = []
    waits = Waits(tmp_path / OF_TRAINING, heard.append)
    for position in range(64):
        waits.begin("gen", position, f"problem {position // 4}", f"engine_{position % 2}")
    clock[0] += 2
    for position in range(12):
        waits.end("gen", position)
    waits.begin("gen", 13, "problem 3", "engine_0")  # again, elsewhere: the youngest
    with waits.on("save", "step 40"):
        clock[0] += 88
        waits.write()
        waits.end("gen", 5)  # once more: nothing
        assert waits_in_words(tmp_path) == [
            "gen for 90 s, 12 of 64 answered; oldest: problem 3, engine_0, 90 s; "
            "problem 3, engine_0, 90 s; problem 3, engine_1, 90 s",
            "save for 88 s: step 40, 88 s",
        ]
    assert heard == ["save"]
    for position in range(12, 64):
        waits.end("gen", position)
    waits.trouble("save", "step 40 was not saved\n(No space left)")
    waits.write()
    assert waits_in_words(tmp_path) == ["save: step 40 was not saved (No space left)"]
    waits.trouble("save", None)
    waits.write()
    assert waits_in_words(tmp_path) == []


def test_a_start_and_the_last_step_by_hand(tmp_path, clock):
    waits = Waits(tmp_path / OF_TRAINING)
    waits.begin("start", "Ray", "Ray")
    clock[0] += 4
    waits.end("start", "Ray")
    with waits.on("start", "engine_0"):
        clock[0] += 9.5
        waits.step_done(7)  # training begins
    assert waits.startup_s == {"Ray": 4.0, "all": 13.5, "engine_0": 9.5}
    assert startup_in_words(waits.startup_s) == "13.5 s (engine_0 9.5 s, Ray 4.0 s)"
    for phase, seconds in (("sync", 1), ("gen", 2), ("evaluate", 4)):  # the first answer counts
        with waits.on(phase):
            clock[0] += seconds
    assert waits.startup_s == {"Ray": 4.0, "all": 16.5, "engine_0": 9.5, "first response": 3.0}
    assert Waits(before={"command": 2.5}).startup_s == {"command": 2.5}
    waits.write()
    assert step_in_words(tmp_path) is None
    clock[0] -= 7 - 3.25
    waits.step_done(8)
    clock[0] += 12
    waits.write()
    assert step_in_words(tmp_path) == "step 8 took 3.25 s and was done 12 s ago"
    assert step_in_words(tmp_path / "none") is None


def test_a_process_that_writes_no_more_is_named(tmp_path, monkeypatch):
    waits = Waits(tmp_path / OF_TRAINING)
    waits.write()
    now = time.time()
    monkeypatch.setattr(waits_module.time, "time", lambda: now + 60)
    (line,) = waits_in_words(tmp_path)
    assert line == "nothing was written for 60 s: the process is stopped, or its disk fails"


def test_the_file_is_there_while_the_block_lasts_and_survives_a_full_disk(tmp_path):
    with mounted_small_disk(tmp_path) as disk:
        waits = Waits(disk / OF_TRAINING)
        with waits.written():
            wait_for(lambda: read_waits(disk) is not None, NOTICED_S)
            leave_free(disk, 0)
            waits.begin("update", 1, "step 3", "learner")
            wait_for(lambda: waits_in_words(disk) != [], NOTICED_S)
        assert not (disk / OF_TRAINING).exists()
        leave_free(disk, 0)
        waits.write()  # no room for a new one
        assert waits_in_words(disk) == []


def sealed(body: bytes) -> bytes:
    return b"%08x%08x" % (zlib.crc32(body), len(body)) + body


def record(**parts: Any) -> bytes:
    same = {"written_at": 2e9, "step": 1, "last_step_s": 0, "step_age_s": 0}
    return sealed(json.dumps(same | {"phases": [], "troubles": {}} | parts).encode())


def write(content: bytes) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        os.mkfifo,
        Path.mkdir,
        lambda file: file.symlink_to("/etc/hostname"),
        write(b""),
        write(b"\0" * 2**14),
        write(b"x" * 2**20),
        write(b"zzzzzzzz" * 4),
        write(sealed(b"{}")),
        write(sealed(b"[" * 20_000)),
        write(sealed(b"\xff\xfe")),
        write(record(written_at="never")),
        write(record(step_age_s=float("nan"))),
        write(record(phases=[{"name": []}])),
        write(record(phases=[{}] * 50_000)),
        write(record(troubles={str(i): "x" for i in range(999)})),
        write(record()[:-5] + b"00000"),
    ],
)
def test_a_strangers_file_is_as_if_it_were_not_there(tmp_path, damage):
    damage(tmp_path / OF_TRAINING)
    assert read_waits(tmp_path) is None
    assert waits_in_words(tmp_path) == []
    assert step_in_words(tmp_path) is None


def test_a_strangers_words_steer_no_terminal_and_fill_no_screen(tmp_path):
    thing = {"what": "\x1b[2Jgone\n", "where": "\u202e", "age_s": -1e300}
    phase = {"name": "\x9b2J", "age_s": 1e300, "begun": -5, "unfinished": 2**60, "oldest": [thing]}
    troubles = {"a\x07": "\x1b]0;title\x07" * 1_000}
    (tmp_path / OF_TRAINING).write_bytes(record(phases=[phase], troubles=troubles))
    lines = waits_in_words(tmp_path)
    assert len(lines) == 2
    assert all(line.isprintable() and len(line) < 3_000 for line in lines)


def test_a_reward_that_hangs_is_named(tmp_path):
    waits = Waits(tmp_path / OF_TRAINING)
    env = Gsm8k.model_validate({"reward": "tests.support.user_rewards:slow"})
    with start_rewards(env, RewardConfig(workers=2)) as started:
        rewards = NotedRewards(started, waits)
        problems = [Problem(index, "data", (), "1", 0) for index in (17, 18)]
        pending = [rewards.submit(str(tmp_path / f"{p.index}"), p) for p in problems]
        with waits.written():
            wait_for(lambda: any("problem 17" in x for x in waits_in_words(tmp_path)), NOTICED_S)
            (line,) = waits_in_words(tmp_path)
            assert line.startswith("reward for ")
            assert "0 of 2 done; oldest: problem 17, " in line
    assert all(future.done() for future in pending)


def test_a_full_disk_in_a_save_is_named(tmp_path):
    waits = Waits(tmp_path / OF_TRAINING)
    with mounted_small_disk(tmp_path) as disk, waits.written():
        leave_free(disk, 4096)
        kept = CheckpointsConfig()
        writes = lambda folder: (folder / "model").write_bytes(b"x" * 2**20)  # noqa: E731
        with BackgroundSave(kept, disk, lambda: 2**20, writes, waits=waits) as saves:
            saves.snapshot()
            saves.write(40, None)
        wait_for(lambda: waits_in_words(tmp_path) != [], NOTICED_S)
        (line,) = waits_in_words(tmp_path)
        assert line.startswith("save: step 40 was not saved (")
        assert "No space left on device" in line
