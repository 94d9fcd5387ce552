"""A run that was killed, failed or used up its budget: the same command continues it."""

import json
import os
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
        """Starts it, and returns once it has saved a step and done more."""
        process = self.start()
        steps = lambda: steps_below(self.root)  # noqa: E731  # asked again and again
        wait_for(lambda: max(steps(), default=0) > FIRST_SAVED, LIMIT_S, process=process)
        wait_for(lambda: list(self.root.glob("runs/*/checkpoints/latest")), LIMIT_S)
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


def killed(command: Command) -> list[str]:
    process = command.begun()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)
    return []


def out_of_memory(command: Command) -> list[str]:
    process = command.start(environment=hungry_after(FIRST_SAVED + 1))
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, err
    assert "out of memory" in err
    record = command.record()
    assert record["status"] == "failed"
    assert f"continues from step {FIRST_SAVED}" in record["next_step"]
    return []


def out_of_budget(command: Command) -> list[str]:
    process = command.start("budget.max_hours=0.0005")
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    record = command.record()
    assert (record["status"], record["stopped_by"]) == ("finished", "budget.max_hours=0.0005")
    assert record["next_step"].startswith("the same command with a larger budget.max_hours")
    return ["budget.max_hours=1"]


@pytest.mark.chaos
@pytest.mark.parametrize(
    ("command", "end"),
    # Stopped by a signal: test_run.py. `run` chooses by the same lines, and evaluates besides.
    [("train", killed), ("run", out_of_memory), ("train", out_of_budget)],
)
def test_the_same_command_continues_it(
    command: str,
    end: Callable[[Command], list[str]],
    tmp_path: Path,
    tiny_overrides: list[str],
    survived: Callable[..., None],
) -> None:
    """Real processes: its first line says so, and each step is there once."""
    settings = short(tiny_overrides, total_steps=NUM_STEPS, save_freq=5, test_freq=20)
    place = Command(tmp_path, command, [*settings, "retry.max_retries=0"])
    changes = end(place)
    wait_for(place.is_gone, LIMIT_S)
    checkpoint = latest(place.run)
    assert checkpoint is not None
    assert 0 < checkpoint.step < NUM_STEPS
    done = max(steps_below(place.root))
    process = place.start(*changes)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, err
    first = out.splitlines()[0]
    assert f"continuing run {place.run.name} from step {checkpoint.step}; " in first
    assert "run_id=NEWNAME begins anew" in first
    record = place.record()
    assert (record["status"], record["steps"], record["stopped_by"], record["next_step"]) == (
        *("finished", NUM_STEPS, None, None),
    )
    assert [attempt["from_step"] for attempt in record["attempts"]] == [0, checkpoint.step]
    assert steps_below(place.root) == list(range(NUM_STEPS + 1))
    survived("stop", end.__name__, steps_lost=done - checkpoint.step)
