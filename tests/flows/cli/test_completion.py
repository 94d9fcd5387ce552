"""In a real bash, which runs the program at each TAB."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli.main import run_command
from tests.support.programs import run

ROOT = Path(__file__).parents[3]
PROGRAM = (
    f'#!{sys.executable}\nfrom flows.cli.main import main\nif __name__ == "__main__":\n    main()\n'
)
TAB = """
eval "$(countdown-train completion bash)"
function=$(complete -p countdown-train | sed 's/.*-F \\([^ ]*\\).*/\\1/')
for line in "$@"; do
    COMP_LINE="$line" COMP_POINT=${#line} COMP_TYPE=9 COMPREPLY=()
    "$function" countdown-train
    (IFS='|'; echo "${COMPREPLY[*]}")
done
"""


def test_tab_in_bash_completes_commands_presets_and_settings(tmp_path):
    program = tmp_path / "bin" / "countdown-train"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    for name in ("night-1", "night-2", ".hidden"):
        (tmp_path / "outputs" / "runs" / name).mkdir(parents=True)
    asked = {
        "preflig": "preflight ",
        "run preset=tinyzero-3b": "tinyzero-3b|tinyzero-3b-instruct",
        "run env=g": "gsm8k ",
        "train seed=1 actor.lr_": "actor.lr_schedule=",
        "explain actor.lr_": "actor.lr_schedule ",
        "data col": "column=",
        "report ni": "night-1|night-2",
        "ask night-1": "night-1|night-1/base|night-1/best|night-1/latest",
        "sql search_by": "search_by_step ",
    }
    lines = [f"countdown-train {line}" for line in asked]
    more = {"PYTHONPATH": str(ROOT), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = run("bash", "--norc", "-c", TAB, "bash", *lines, cwd=tmp_path, more=more)
    assert done.stderr == ""
    found = dict(zip(asked, done.stdout.split("\n")[: len(asked)], strict=True))
    order = {line: sorted(words.split("|")) for line, words in found.items()}
    assert order == {line: sorted(words.split("|")) for line, words in asked.items()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_it_can_read(capsys, tmp_path, shell):
    assert run_command(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert "countdown-train" in script.read_text()
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True, timeout=60)
