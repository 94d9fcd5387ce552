"""ATTACKS on the terminal: what a model, a file or a log says is shown, and steers nothing."""

import json
import logging
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.runs import new_run, write_rollouts

ATTACK = "\x1b]52;c;ZXZpbA==\x07 \x9b2J \x7f \u202egnp.exe \x1b[8mhidden \u2066x"
STEERING = ("\x1b]", "\x07", "\x9b", "\x7f", "\u202e", "\u2066", "\x1b[8m")
COMMANDS = """
import json, sys
from flows.cli.main import run_command
for words in json.loads(sys.argv[1]):
    run_command(words)
"""


def on_a_terminal(commands: list[list[str]], folder: Path) -> str:
    """Returns what commands write to a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(Path.cwd()), "TERM": "xterm", "COLUMNS": "300"},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ):
        os.close(theirs)
        said = b""
        with suppress(OSError):  # the other end is closed
            while part := os.read(ours, 65_536):
                said += part
    os.close(ours)
    return said.decode(errors="replace")


def test_no_command_passes_on_what_would_steer_a_terminal(tmp_path):
    run = new_run(tmp_path)
    run.metrics.append(1, {"critic/score/mean": 0.5, f"memory/peak_gib/{ATTACK}": 1.0})
    write_rollouts(run.path, [{"verdict": ATTACK, "response": ATTACK}])
    with run.log_to_file():
        logging.getLogger("rl_core").warning("a model said %s", ATTACK)
    run.update(status="failed", reason=f"RuntimeError: {ATTACK}")
    assert not any(sign in (run.path / "log.txt").read_text() for sign in STEERING)
    script = tmp_path / "script.sh"
    script.write_text(
        "python3 -m verl.trainer.main_ppo data.train_batch_size=8 "
        f"'actor_rollout_ref.actor.strange={ATTACK}' 'data.{ATTACK}=1' $'x'\n"
    )
    (tmp_path / "preset.yaml").write_text(json.dumps({"seed": ATTACK, ATTACK: 1}))
    root = f"storage.root={tmp_path}"
    question = ["sql", "-q", "select response, verdict from rollouts", root]
    said = on_a_terminal(
        [
            *(["watch", "r", root], ["runs", root], ["report", "r", root], question),
            *([*question, "--format", name] for name in ("csv", "json")),
            ["import", str(script), "output=made.yaml"],
            ["config", "preset=preset.yaml"],
            ["config", f"trainer.wandb_project='{ATTACK}'"],
            ["config", f"{ATTACK}=1"],
            ["evaluate", f"checkpoint={ATTACK}", root],
        ],
        tmp_path,
    )
    assert said.count("\\x1b]52") >= 8, said
    assert [sign for sign in STEERING if sign in said] == []
