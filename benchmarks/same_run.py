"""Whether two commits train the same: metrics, rollouts and weights of short runs, bit for bit.

    .venv/bin/python benchmarks/same_run.py BEFORE AFTER [--presets quickstart quickstart-gsm8k]
        [KEY=VALUE ...]

Each commit's code is laid out in a temporary folder and runs in this environment, one after the
other. Left out are times, speeds and memory, which differ in every run. Exit code 1 if anything
differs. Uses only the standard library and polars, so that any two commits can be compared.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import polars as pl

ROOT = Path(__file__).parent.parent
SETTINGS = (
    "run_id=same",
    "trainer.total_steps=5",
    "trainer.save_freq=5",
    "trainer.test_freq=5",
    "trainer.test_problems=64",
    "trainer.logger=[]",
    "base_model.steps=40",
    "data.train_size=2000",
    "evaluation.max_problems=32",
)
NOT_COMPARED = (
    *("time", "timing_s/", "timing_per_token_ms/", "perf/", "rollout/tokens_per_s", "mfu/"),
    *("memory/peak_gib/", "memory/host_", "memory/card_", "disk/", "cost/"),
)
NOT_COMPARED_COLUMNS = ("run_id", "generated_at")


def run(commit: str, preset: str, settings: list[str], folder: Path) -> Path:
    """Runs a commit's code and returns its run folder."""
    code, root = folder / "code", folder / preset
    if not code.exists():
        code.mkdir()
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x"], cwd=code, check=True, input=archive.stdout)
    project = tomllib.loads((code / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["countdown-train"].partition(":")
    start = f"import sys; from {module} import {function} as main; sys.exit(main())"
    own = {word.partition("=")[0]: word for word in (*SETTINGS, *settings)}  # the last wins
    words = ["run", f"preset={preset}", f"storage.root={root}", *own.values()]
    log = folder / f"{preset}.log"
    with log.open("wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", start, *words],
            cwd=code,
            env=os.environ | {"PYTHONPATH": str(code)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            check=False,
        )
    if done.returncode:
        sys.exit(f"{commit}, {preset}: exit code {done.returncode}\n{log.read_text()[-4_000:]}")
    return root / "runs" / "same"


def compared(run_folder: Path) -> dict[str, Any]:
    """Returns what two runs must have in common, by name."""
    lines = (run_folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, Any] = {}
    for row in map(json.loads, lines):
        for name, value in row.items():
            if not name.startswith(NOT_COMPARED):
                found[f"step {row['step']}: {name}"] = value
    for folder in ("rollouts", "held_out", "eval"):
        for file in sorted((run_folder / folder).rglob("*.parquet")):
            frame = pl.read_parquet(file)
            frame = frame.drop(*NOT_COMPARED_COLUMNS, strict=False)
            found[str(file.relative_to(run_folder))] = frame.write_json()
    for file in sorted((run_folder / "checkpoints").glob("step_*/**/*.safetensors")):
        found[str(file.relative_to(run_folder))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def main() -> None:
    """Compares, and prints what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--presets", nargs="+", default=["quickstart"])
    given = parser.parse_args()
    is_same = True
    for preset in given.presets:
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            before = compared(run(given.before, preset, given.settings, Path(one)))
            after = compared(run(given.after, preset, given.settings, Path(other)))
        differ = [n for n in before.keys() | after.keys() if before.get(n) != after.get(n)]
        is_same &= not differ
        said = "the same bit for bit" if not differ else f"{len(differ)} differ"
        print(f"{preset}: {len(before)} values, rollout files and weights: {said}")
        for name in sorted(differ)[:20]:
            print(f"  {name}: {str(before.get(name))[:80]} | {str(after.get(name))[:80]}")
    sys.exit(not is_same)


if __name__ == "__main__":
    main()
