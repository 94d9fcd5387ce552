"""A run that was killed, failed or used up its budget: the same command continues it."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rl_core.checkpoints.store import latest
from tests.flows.test_run import LIMIT_S, PROGRAM, ROOT
from tests.support.harness import hungry_after
from tests.support.programs import living, own_prefect, started
from tests.support.runs import short, steps_below
from tests.support.waiting import wait_for

NUM_STEPS = 40
FIRST_SAVED = 5
RICHER = "budget.max_hours=1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Started = subprocess.Popen[str]


class Command:
    """One command, in a folder of its own, started as often as it takes."""

    def __init__(self, folder: Path, command: str, settings: list[str]) -> None:
        self.root = folder / "out"
        self._folder, self._home = folder, folder / "prefect"
        self._words = [command, *settings, f"storage.root={self.root}"]

    def start(self, *more: str, environment: Mapping[str, str] = {}) -> Started:
        own = own_prefect(self._home) | {"PYTHONPATH": str(ROOT)} | dict(environment)
        return started(*PROGRAM, *self._words, *more, cwd=self._folder, env=own)

    def begun(self) -> Started:
        """Starts it, and returns once it has saved a step of its own and done more."""
        process = self.start(RICHER)
        steps = lambda: steps_below(self.root)  # noqa: E731  # asked again and again
        before = max(steps(), default=0)
        wait_for(lambda: max(steps()) > before + 2 * FIRST_SAVED, LIMIT_S, process=process)
        return process

    def is_gone(self) -> bool:
        return not living("PREFECT_HOME", str(self._home))

    @property
    def run(self) -> Path:
        (run,) = (self.root / "runs").iterdir()
        return run

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.run / "run.json").read_text())
        return record


def out_of_memory(command: Command) -> None:
    process = command.start(RICHER, environment=hungry_after(FIRST_SAVED + 1))
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, err
    assert "out of memory" in err
    record = command.record()
    assert record["status"] == "failed"
    assert re.search(r"continues from step \d", record["next_step"])


def killed(command: Command) -> None:
    process = command.begun()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)


def out_of_budget(command: Command) -> None:
    process = command.start("budget.max_hours=0.0005")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    record = command.record()
    assert (record["status"], record["stopped_by"]) == ("finished", "budget.max_hours=0.0005")
    assert record["next_step"].startswith("the same command with a larger budget.max_hours")


@pytest.mark.chaos
def test_the_same_command_continues_it(
    tmp_path: Path, tiny_overrides: list[str], survived: Callable[..., None]
) -> None:
    """Real processes: its first line says so, and each step is there once.

    Stopped by a signal: test_run.py, by `run`, which chooses by the same lines.
    """
    settings = short(tiny_overrides, total_steps=NUM_STEPS, save_freq=5, test_freq=20)
    command = Command(tmp_path, "train", [*settings, "retry.max_retries=0"])
    saved = [0]
    for end in (out_of_budget, out_of_memory, killed):
        end(command)
        wait_for(command.is_gone, LIMIT_S)
        checkpoint = latest(command.run)
        assert checkpoint is not None
        assert saved[-1] < checkpoint.step < NUM_STEPS
        saved.append(checkpoint.step)
        steps_lost = max(steps_below(command.root)) - checkpoint.step
        survived("stop", end.__name__, steps_lost=steps_lost)
    process = command.start(RICHER)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    first = out.splitlines()[0]
    assert f"continuing run {command.run.name} from step {saved[-1]}; " in first
    assert "run_id=NEWNAME begins anew" in first
    record = command.record()
    assert (record["status"], record["steps"], record["stopped_by"], record["next_step"]) == (
        *("finished", NUM_STEPS, None, None),
    )
    assert [attempt["from_step"] for attempt in record["attempts"]] == saved
    assert steps_below(command.root) == list(range(NUM_STEPS + 1))
