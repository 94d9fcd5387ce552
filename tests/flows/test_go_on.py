"""A run that was killed, failed or used up its budget: the same command continues it."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_core.checkpoints.store import latest
from tests.flows.test_run import LIMIT_S, Place
from tests.support.harness import hungry_after
from tests.support.runs import short
from tests.support.waiting import wait_for

NUM_STEPS = 40
FIRST_SAVED = 5
RICHER = "budget.max_hours=1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def out_of_memory(place: Place) -> None:
    process = place.start(RICHER, environment=hungry_after(FIRST_SAVED + 1))
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1, err
    assert "out of memory" in err
    record = place.record()
    assert record["status"] == "failed"
    assert re.search(r"continues from step \d", record["next_step"])


def killed(place: Place) -> None:
    """Once it has saved a step of its own and done more."""
    process = place.start(RICHER)
    before = max(place.steps())
    target = before + 2 * FIRST_SAVED
    wait_for(lambda: max(place.steps()) > target, LIMIT_S, process=process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=LIMIT_S)


def out_of_budget(place: Place) -> None:
    done = place.run("budget.max_hours=0.0005")
    assert done.returncode == 0, done.stderr
    record = place.record()
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
    place = Place(tmp_path, [*settings, "retry.max_retries=0"])
    place.arguments[0] = "train"
    saved = [0]
    for end in (out_of_budget, out_of_memory, killed):
        end(place)
        wait_for(lambda: not place.processes(), LIMIT_S)
        checkpoint = latest(place.folder())
        assert checkpoint is not None
        assert saved[-1] < checkpoint.step < NUM_STEPS
        saved.append(checkpoint.step)
        steps_lost = max(place.steps()) - checkpoint.step
        survived("stop", end.__name__, steps_lost=steps_lost)
    done = place.run(RICHER)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert f"continuing run {place.folder().name} from step {saved[-1]}; " in first
    assert "run_id=NEWNAME begins anew" in first
    record = place.record()
    assert (record["status"], record["steps"], record["stopped_by"], record["next_step"]) == (
        *("finished", NUM_STEPS, None, None),
    )
    assert [attempt["from_step"] for attempt in record["attempts"]] == saved
    assert place.steps() == list(range(NUM_STEPS + 1))
