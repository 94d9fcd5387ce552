"""`stop`, `logs` and `note`: a run from another terminal."""

import os
import subprocess
import sys
import threading
from contextlib import ExitStack

import pytest

from rl_core.runs.lock import owned, owner_of
from rl_core.runs.run_folder import RunFolder
from rl_core.system.words import printable
from tests.support.runs import new_run

HOLDS = """
import sys, time
from pathlib import Path
from rl_core.runs.lock import owned
from rl_core.runs.run_folder import RunFolder

run = RunFolder(Path(sys.argv[1]))
with owned(run):
    print("at work", flush=True)
    try:
        time.sleep(300)
    except KeyboardInterrupt:
        time.sleep(1)  # its save
        run.update(status="interrupted", next_step="the same command continues from step 7")
"""


def test_stop_ends_the_process_that_is_at_work_and_waits_for_its_save(cli, tmp_path):
    run = new_run(tmp_path, "night")
    command = [sys.executable, "-c", HOLDS, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "at work\n"
        assert owner_of(run) == process.pid
        shown = cli("stop", "night").out.splitlines()
        assert process.wait(5) == 0
    assert shown[0].startswith(f"run night (process {process.pid}) saves and stops")
    assert shown[1] == "interrupted: the same command continues from step 7"
    assert owner_of(run) is None
    refused = cli("stop", "night", code=2).err
    assert "no process here is at work on run night (interrupted)" in refused


def test_a_file_cannot_name_the_process_that_is_stopped(cli, tmp_path):
    run = new_run(tmp_path, "strange")
    (run.path / ".owner").write_text(str(os.getpid()))
    assert "no process here" in cli("stop", "strange", code=2).err
    mine = new_run(tmp_path, "mine")
    (run.path / ".owner").unlink()
    (run.path / ".owner").symlink_to(mine.path / ".owner")
    with owned(mine):
        assert owner_of(mine) == os.getpid()
        assert owner_of(run) is None


LOG = """\
2026-11-20T20:00:01Z INFO tasks.train: learner is ready
2026-11-20T20:00:03Z ERROR tasks.train: it failed
Traceback (most recent call last):
"""
LEARNER = """\
2026-11-20T20:00:01Z INFO tasks.train: learner is ready
2026-11-20T20:00:02Z INFO rl_core.workers.actors: float32
a library's line \x1b[31m
"""


def test_logs_are_merged_by_time_and_a_line_is_shown_once(cli, tmp_path):
    run = new_run(tmp_path, "r")
    (run.path / "workers").mkdir(exist_ok=True)
    (run.path / "log.txt").write_text(LOG)
    (run.path / "workers" / "learner.log").write_text(LEARNER)
    (tmp_path / "secret").write_text("2026-11-20T20:00:02Z a secret\n")
    (run.path / "workers" / "engine_0.log").symlink_to(tmp_path / "secret")
    first, second, third, *last = cli("logs", "r").out.splitlines()
    assert first == "2026-11-20T20:00:01Z INFO tasks.train: learner is ready"
    assert second == "2026-11-20T20:00:02Z [learner] INFO rl_core.workers.actors: float32"
    assert third.startswith("[learner] a library's line ")
    assert "\x1b" not in third
    assert last == LOG.splitlines()[1:]


def test_logs_follow_a_run_until_its_process_is_gone(cli, tmp_path):
    run = new_run(tmp_path, "r")
    log = run.path / "log.txt"
    log.write_text("2026-11-20T20:00:01Z INFO a\n2026-11-20T20:00:02Z INFO half")
    stack = ExitStack()
    stack.enter_context(owned(run))

    def ends() -> None:
        with log.open("a") as file:
            file.write(" a line\n2026-11-20T20:00:03Z INFO end\n")
        stack.close()

    threading.Timer(0.7, ends).start()
    shown = [line.partition("INFO ")[2] for line in cli("logs", "-f", "r").out.splitlines()]
    assert shown == ["a", "half a line", "end"]


@pytest.mark.parametrize(
    ("word", "ours"), [("resume", "run run_id=RUN"), ("ls", "runs"), ("tail", "logs -f RUN")]
)
def test_a_word_of_another_program_is_answered_with_ours(cli, word, ours):
    refused = cli(word, code=2, root=None).err
    assert f"unknown command '{word}': countdown-train {ours}" in refused


HOSTILE = "<script>alert(1)</script> \x1b[31m\u202e `x` {{ 7*7 }}"


def test_a_note_is_kept_shown_everywhere_and_deleted(cli, tmp_path):
    for name in ("one", "two"):
        new_run(tmp_path, name).metrics.append(1, {"reward/accuracy": 0.5})
    assert cli("note", "one").out == "run one has no note\n"
    cli("note", "one", "lr = 3 was  too\nhigh")
    assert cli("note", "one").out == "lr = 3 was too high\n"
    cli("note", "one", HOSTILE)
    shown = printable(HOSTILE)
    assert f"one: {shown}\n" in cli("runs").out
    assert "<script>" in cli("compare", "one", "two").out
    assert f"note: {shown}" in " ".join(cli("watch", "one").out.split())
    cli("report", "one")
    page = (tmp_path / "runs" / "one" / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "{{ 7*7 }}" in page
    for text in (cli("runs", "note=SCRIPT").out, page, shown):
        assert "\x1b" not in text
    assert "at most 500" in cli("note", "one", "x" * 501, code=2).err
    cli("note", "one", "x" * 500)
    cli("note", "one", "")
    assert RunFolder(tmp_path / "runs" / "one").read().note is None
    assert "note takes RUN and a TEXT" in cli("note", code=2).err
    assert "no run 'nobody'" in cli("note", "nobody", "x", code=2).err


def test_a_note_stays_while_the_run_goes_on_and_holds_no_secret(cli, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-of-ours")
    run = new_run(tmp_path, "night")
    with owned(run):
        assert "secret" not in cli("note", "night", "key a-secret-of-ours").out
        run.update(steps=3)
    assert run.read().note == "key ***"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders to another user")
def test_another_users_run_gets_no_note(cli, tmp_path):
    run = new_run(tmp_path, "theirs")
    for path in (run.path, tmp_path / "runs"):
        os.chown(path, 54321, 54321)
    os.chown(tmp_path / "runs", 0, 0)
    assert "only its owner notes" in cli("note", "theirs", "x", code=2).err
