"""What of the workers' output reaches whoever trains: real lines of real libraries, and a flood."""

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tasks.supervision import worker_logs as module
from tasks.supervision.worker_logs import worker_logs, worth_telling

LINES = yaml.safe_load(Path(__file__).with_name("worker_lines.yaml").read_text())


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_lines_of_loggers_are_told_apart_from_noise():
    told = {line: worth_telling(line) for line in LINES}
    assert told == {line: said and tuple(said) for line, said in LINES.items()}


def test_a_process_is_heard_while_it_lives_and_without_secrets(tmp_path, caplog, monkeypatch):
    """A real process that writes as a worker does, and half a line before it continues."""
    monkeypatch.setenv("TEST_API_KEY", "a-secret-of-eight")
    monkeypatch.setattr(module, "_POLL_S", 0.05)
    caplog.set_level(logging.INFO)
    (tmp_path / "engine_0.log").write_text("WARNING 11-20 00:00:00 [a.py:1] of the run before\n")
    program = """
import sys
for i in range(3):
    print(f"WARNING 11-21 20:46:1{i} [a.py:1] step {i}: key a-secret-of-eight\\x1b[2J", flush=True)
print("a banner\\nWARNING 11-21 20:46:16 [a.py:2] in two", end="", flush=True)
sys.stdin.read()
print(" parts")
raise KeyError("last words")
"""
    logger = logging.getLogger("mine")
    with (
        worker_logs(tmp_path, logger),
        (tmp_path / "engine_0.log").open("a") as log,
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=log, stderr=log
        ) as process,
    ):
        for child in ("trainer", "evaluator", "sft"):
            line = "2026-11-21T20:46:16Z WARNING tasks.x: told otherwise\n"
            (tmp_path / f"{child}.log").write_text(line)
        while not caplog.records:
            assert process.poll() is None
            time.sleep(0.02)
        assert told(caplog) == [(30, r"engine_0: [a.py:1] step 0: key ***\x1b[2J")]
        process.communicate(b"")
    assert told(caplog)[1:] == [
        (30, "engine_0: [a.py:2] in two parts"),
        (40, "engine_0: KeyError: 'last words'"),
    ]


def test_a_flood_is_counted_and_long_lines_are_cut(tmp_path, caplog):
    with worker_logs(tmp_path, logging.getLogger("mine")):
        words = [f"{'ab'[i % 2] * (i + 1)}" for i in range(50)]
        lines = [f"2026-11-21T20:46:16Z ERROR rl_core.x: {word}" for word in words]
        flood = "2026-11-21T20:46:16Z ERROR rl_core.x: " + "long " * 200_000
        (tmp_path / "learner.log").write_text("\n".join([flood, *lines]) + "\n")
    assert len(told(caplog)) == 21
    assert told(caplog)[-1] == (30, f"learner: 30 more lines, in {tmp_path / 'learner.log'}")
    assert all(len(text) < 600 for _, text in told(caplog))
