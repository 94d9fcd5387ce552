"""The README's commands: each is understood, and each does what it says."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from flows.cli.main import _parse, run_command
from flows.runs.lookup import take_arguments
from flows.settings.compose import compose

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`countdown-train ([^`]+)`")
PROGRAM = [sys.executable, "-c", "from flows.cli.main import main; main()"]
OWN_ARGUMENTS = ("checkpoint", "against", "dry_run", "split")
SCRIPT = """python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=256 \\
    actor_rollout_ref.actor.optim.lr=1e-6
"""
LOG = """step:1 - critic/score/mean:0.05 - response_length/mean:181.0 - actor/lr:1e-06
step:2 - critic/score/mean:0.06 - response_length/mean:180.0 - actor/lr:1e-06
"""
TOO_MUCH = ("tinyzero-0.5b-24gb", "Jiayi-Pan", "gsm8k-ppo", "preset=train.yaml", "--shell")
"""A card, the hub, a night, a person: of these lines only the words are checked."""
ENDS_WITH = {
    "preflight preset=tinyzero-3b": (0, 2),  # without a card it says so
    "evaluate checkpoint=champion": (0, 2),  # two steps make none
    "sync": (1,),  # nobody answers there
}
"""Exit codes other than 0."""


def commands() -> list[str]:
    """The words behind `countdown-train` of every line and every example in a sentence."""
    text = (ROOT / "README.md").read_text()
    lines = [line for block in FENCE.findall(text) for line in block.splitlines()]
    fenced = [line.removeprefix("countdown-train ") for line in lines if line.startswith("countd")]
    return sorted({*(line.partition("  #")[0].strip() for line in fenced), *INLINE.findall(text)})


def test_the_commands_are_found() -> None:
    named = {line.split()[0] for line in commands()}
    assert len(commands()) > 30
    assert named >= {"run", "generate", "validate", "evaluate", "sql", "import", "data", "ask"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of somebody who follows the README."""
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "verl_demo.log").write_text(LOG)
    for name in ("train.yaml", "FILE.yaml"):
        (tmp_path / name).write_text("trainer: {total_steps: 3}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", commands())
def test_every_command_is_understood(place: Path, line: str) -> None:
    options = _parse(shlex.split(line))
    settings = [word for word in options.words if re.match(r"[a-z][\w.]*=", word)]
    compose(take_arguments(settings, OWN_ARGUMENTS)[1])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_does_what_it_says(
    place: Path,
    tiny_overrides: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one storage root with one small run; `run` itself in a process, as by hand."""
    small = [*tiny_overrides, "rollout.engine=hf", "trainer.total_steps=2"]
    home = place / "prefect"
    done = subprocess.run(
        [*PROGRAM, "run", "preset=quickstart", *small, "run_id=RUN"],
        env={k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
        | {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    (data,) = (file.parent for file in place.glob("outputs/data/*/train.parquet"))
    rows = pl.read_parquet(data / "*.parquet").select("nums", "target").to_dicts()
    (place / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    shutil.copytree(place / "outputs/runs/RUN", place / "outputs/runs/RUN2", symlinks=True)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    more = {"validate": small, "data": small}

    for line in commands():
        command, *words = shlex.split(line)
        if command == "run" or any(word in line for word in TOO_MUCH):
            continue
        if line == "compare RUN RUN":
            words = ["RUN", "RUN2"]
        if line.startswith("evaluate") and "against" in line:
            words = ["checkpoint=RUN/base", "against=RUN"]
        if command == "import":
            (place / "train.yaml").unlink(missing_ok=True)  # it writes over no file
        given = set(words)
        words += [word for word in more.get(command, ()) if word not in given]
        code = run_command([command, *words])
        said = capsys.readouterr()
        assert code in ENDS_WITH.get(line, (0,)), f"{line}: {said.err}"
        assert said.out or code, line
