"""Commands that read files, or send a message, answer before Prefect or torch could be loaded."""

import subprocess
import sys

import pytest

from tests.support.runs import new_run, write_rollouts

LOADED = """
import sys
from flows.cli.main import run_command

assert run_command(sys.argv[1:]) == {code}
heavy = {{"hydra", "duckdb", "prefect", "torch", "transformers", "ray", "vllm"}}
sys.stderr.write(" ".join(["loaded", *sorted(heavy & sys.modules.keys())]))
"""


@pytest.mark.parametrize(
    ("words", "code", "loaded"),
    [
        ("reward probe env=countdown", 0, "hydra"),
        ("runs", 0, "duckdb"),
        ("compare a b", 0, "duckdb"),
        ("watch b", 0, "duckdb hydra"),
        ("report b", 0, "duckdb hydra"),
        ("audit b", 1, "hydra"),
        ("runs --json --last 1", 0, "duckdb"),
        ("runs status=finished", 0, "duckdb"),
        ("note b text", 0, "hydra"),
        ("run actor.lrr=1", 2, "hydra"),
        ("data lengths {rows} column=response model.path={model}", 0, "hydra transformers"),
        ("data lengths {rows} column=response", 0, "hydra"),
        ("notify test", 2, ""),  # no file names anybody
    ],
)
def test_what_a_command_loads(tmp_path, tiny_model_path, words, code, loaded):
    for name in "ab":
        run = new_run(tmp_path, name)
        run.update(status="finished", steps=1, finished_at="2026-11-21T00:00:00+00:00")
        run.metrics.append(1, {"reward/accuracy": 0.5})
        rows = write_rollouts(
            run.path, [{"prompt_index": 0, "response": "r", "verdict": "correct"}]
        )
    given = words.format(rows=rows, model=tiny_model_path).split()
    command = [sys.executable, "-c", LOADED.format(code=code), *given]
    root = [] if words == "notify test" else [f"storage.root={tmp_path}"]
    ended = subprocess.run([*command, *root], capture_output=True, text=True, check=True)
    assert ended.stderr.splitlines()[-1].split() == ["loaded", *loaded.split()]
