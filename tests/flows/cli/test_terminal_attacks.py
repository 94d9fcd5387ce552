"""ATTACKS on the terminal: what a model, a file or a log says is shown, and steers nothing."""

import json
import logging
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import yaml

from flows.cli.main import run_command
from rl_core.checkpoints.champion import Champion, PromotedContender
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tests.support.runs import new_run, write_rollouts
from tests.support.stored_run import STORED, without_gone_settings

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


MARKUP = f"[blink red on blue]{ATTACK}[/]"
"""Is not to be read as rich's markup either."""


def texts_of(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the place of each text in a tree, and of each null, which may be one."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from texts_of(value, (*place, key))
    elif isinstance(tree, list):
        for key, value in enumerate(tree):
            yield from texts_of(value, (*place, key))
    elif tree is None or isinstance(tree, str):
        yield place


def planted(tree: Any, is_valid: Callable[[Any], object]) -> int:
    """Puts the attack wherever a text may stand, if the tree stays valid; returns how often."""
    count = 0
    for *place, last in list(texts_of(tree)):
        at = tree
        for key in place:
            at = at[key]
        before, at[last] = at[last], MARKUP
        try:
            is_valid(tree)
            count += 1
        except ValueError:
            at[last] = before
    return count


def plant_everywhere(root: Path) -> int:
    """Plants the attack in each text of a stored run's files; returns in how many."""
    run = RunFolder(root / "runs" / "stored")
    settings = yaml.safe_load((run.path / "config.yaml").read_text())
    count = planted(settings, RunConfig.model_validate)
    (run.path / "config.yaml").write_text(yaml.safe_dump(settings))
    record = json.loads((run.path / "run.json").read_text())
    keeps = {name: record.pop(name) for name in ("run_id", "started_at", "data")}
    record |= {"own_settings": {MARKUP: [MARKUP, MARKUP]}}
    count += planted(record, lambda tree: type(run.read()).model_validate(tree | keeps))
    (run.path / "run.json").write_text(json.dumps(record | keeps))
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    rows = [row | {f"{name}{MARKUP}": 1.0 for name in PREFIXES} | {MARKUP: 2.0} for row in rows]
    (run.path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for folder in ("rollouts", "eval", "held_out"):
        for file in (run.path / folder).glob("*.parquet"):
            frame = pl.read_parquet(file)
            keep = {"run_id", "model", "mode", "evaluation", "data_source"}
            names = [n for n, kind in frame.schema.items() if kind == pl.String and n not in keep]
            frame.with_columns(**{name: pl.lit(MARKUP) for name in names}).write_parquet(file)
            count += len(names)
    manifest = run.path / "checkpoints" / "step_000004" / "checkpoint.json"
    content = json.loads(manifest.read_text())
    content["files"].append({"path": MARKUP.replace("/", ""), "bytes": 1, "crc32": MARKUP})
    manifest.write_text(json.dumps(content))
    reign = dict.fromkeys(PromotedContender.model_fields, MARKUP)
    reign |= {"run_id": "stored", "checkpoint": "runs/stored/checkpoints/step_000004"}
    reign |= {"step": 4, "accuracy": 0.5, "num_problems": 9, "evaluation": {MARKUP: MARKUP}}
    champion = Champion.model_validate({"env": MARKUP, "problems": MARKUP, "current": reign})
    (root / "champions").mkdir()
    (root / "champions" / "countdown-1.json").write_text(champion.model_dump_json())
    with (run.path / "log.txt").open("a") as log:
        log.write(f"2026-11-25T15:46:00Z WARNING rl_core.any: {MARKUP}\n")
    return count


PREFIXES = ("memory/peak_gib/", "memory/host_gib/", "memory/oom/", "timing_s/", "reward/verdict/")


def test_no_text_of_a_strangers_run_steers_a_terminal_or_is_markup(tmp_path):
    shutil.copytree(STORED, tmp_path / "outputs", symlinks=True)
    root = tmp_path / "outputs"
    without_gone_settings(root / "runs" / "stored")
    shutil.copytree(root / "runs" / "stored", root / "runs" / "other", symlinks=True)
    assert plant_everywhere(root) > 40
    saved = ("learning_curve", "still_failing", "runs_overview", "settings_that_differ", "attempts")
    commands = [
        *(["watch", "stored"], ["runs"], ["report", "stored"], ["compare", "stored", "other"]),
        *(["prune", "stored", "dry_run=true"], ["export", "stored/best", "to=made"]),
        *(
            ["ask", "champion", "3 14 7 = 35"],
            ["data", "head", "stored"],
            ["config", "run_id=stored"],
        ),
        *(["sql", name] for name in saved),
        *(["sql", "-q", f"select * from {view}"] for view in ("rollouts", "metrics", "settings")),
        *(["sql", "-q", f"select * from {view}"] for view in ("runs", "checkpoints", "held_out")),
        *(["evaluate", "stored"], ["rescore", "stored", "env.answer_from=last_line"]),
    ]
    said = on_a_terminal(commands, tmp_path)
    assert "Traceback" not in said
    assert [sign for sign in STEERING if sign in said] == []
    assert said.count("[blink red on blue]") >= 20
    page = (root / "runs" / "stored" / "report.html").read_text()
    assert [sign for sign in STEERING if sign in page] == []


def test_what_is_left_of_a_strangers_run_is_not_markup_either(tmp_path, capfd):
    root = tmp_path / "outputs"
    shutil.copytree(STORED, root, symlinks=True)
    without_gone_settings(root / "runs" / "stored")
    plant_everywhere(root)
    run = RunFolder(root / "runs" / "stored")
    run.metrics.cut_after(2)
    run.update(status="running", reason=None)
    assert run_command(["watch", "stored", f"storage.root={root}"]) == 0
    said = capfd.readouterr().out
    assert "left by estimate" in said
    assert "[blink red on blue]\\x1b]52" in said
    assert [sign for sign in STEERING if sign in said] == []
