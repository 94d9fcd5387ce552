"""The main job as a person runs it: stopped, resumed, finished, and broken.

In a working folder full of traps, from a shell full of secrets.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_core.checkpoints.store import latest
from rl_core.evaluation.rows import read_rows
from tests.support.programs import command_lines, living, own_prefect, started
from tests.support.runs import steps_below
from tests.support.traps import SECRETS, addresses, secrets_of, set_traps, sprung
from tests.support.waiting import wait_for

ROOT = Path(__file__).parent.parent.parent
PROGRAM = [str(Path(sys.executable).with_name("countdown-train"))]
LIMIT_S = 600
NUM_STEPS = 40
"""Of 0.3 s each: a stop may take some seconds, and two must fall into one run."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Place:
    """A folder with a storage root and a PREFECT_HOME of its own."""

    def __init__(self, folder: Path, overrides: list[str]) -> None:
        self.root = folder / "out"
        self.home = folder / "prefect"
        self.traps = set_traps(folder / "cwd")
        self.arguments = ["run", *overrides, f"storage.root={self.root}"]

    def start(
        self, *more: str, instead: Sequence[str] = (), environment: Mapping[str, str] = {}
    ) -> subprocess.Popen[str]:
        variables = own_prefect(self.home) | SECRETS | {"PYTHONPATH": str(ROOT)}
        variables["http_proxy"] = "http://127.0.0.1:9"  # nothing is there: loopback needs none
        words = (*(instead or self.arguments), *more)
        return started(*PROGRAM, *words, cwd=self.traps, env=variables | dict(environment))

    def run(self, *more: str, instead: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        process = self.start(*more, instead=instead)
        out, err = process.communicate(timeout=LIMIT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def folder(self) -> Path:
        (folder,) = (self.root / "runs").iterdir()
        return folder

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.folder() / "run.json").read_text())
        return record

    def steps(self) -> list[int]:
        return steps_below(self.root)

    def processes(self) -> list[psutil.Process]:
        """Living processes that inherited this place's PREFECT_HOME."""
        return living("PREFECT_HOME", str(self.home))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, tiny_overrides: list[str]) -> Place:
    more = [f"trainer.total_steps={NUM_STEPS}", "rollout.engine=hf"]
    return Place(tmp_path_factory.mktemp("run"), [*tiny_overrides, *more])


def assert_closed(place: Place) -> None:
    """No process of a run can be reached from elsewhere, or knows a secret that it does not need.

    Nor has one executed what lies in the working folder.
    """
    family = place.processes()
    lines = command_lines(family)
    trainers = [process for process, line in lines.items() if "tasks.supervision.child" in line]
    for trainer in trainers:  # or a slow look would outlast the training
        trainer.suspend()
    try:
        listening, seen = addresses(family), secrets_of(family)
    finally:
        for trainer in trainers:
            trainer.resume()
    assert {"gcs_server", "raylet"} <= listening.keys()
    assert set().union(*listening.values()) == {"127.0.0.1"}, listening
    assert seen.pop("countdown-train") == SECRETS.keys()  # what the shell started
    assert {"tasks.supervision.child", "raylet", "ray::LearnerActor"} <= seen.keys()
    assert set().union(*seen.values()) == set(), seen
    assert sprung(place.traps) == ""


def stop(place: Place, process: subprocess.Popen[str], kill: Callable[[], None]) -> str:
    """Sends a signal in mid-training and returns stderr, once all is gone and no step is lost."""
    before = len(place.steps())
    wait_for(lambda: len(place.steps()) > max(before, 2), LIMIT_S, process=process)
    assert_closed(place)
    sent_at = time.monotonic()
    kill()
    _, err = process.communicate(timeout=60)
    assert time.monotonic() - sent_at < 30
    assert process.returncode == 1
    assert place.processes() == []
    record = place.record()
    assert record["status"] == "interrupted"
    assert f"run_id={record['run_id']}" in record["reason"]
    checkpoint = latest(place.folder())
    assert checkpoint is not None
    assert checkpoint.step == record["steps"] == place.steps()[-1] < NUM_STEPS
    assert "Traceback" not in err
    return err


@pytest.mark.chaos
def test_sigterm_stops_a_run_and_the_same_command_resumes_it(place, survived):
    process = place.start()
    err = stop(place, process, lambda: os.kill(process.pid, signal.SIGTERM))
    assert err == "countdown-train: interrupted: SIGTERM\n"
    survived("stop", "SIGTERM")


@pytest.mark.chaos
def test_ctrl_c_reaches_the_whole_group_and_stops_it_too(place, survived):
    """As in a terminal, where every process of the foreground group gets the signal."""
    process = place.start()
    err = stop(place, process, lambda: os.killpg(process.pid, signal.SIGINT))
    assert err == "countdown-train: interrupted\n"
    assert len(place.record()["attempts"]) == 2
    survived("stop", "SIGINT")


def test_the_resumed_run_finishes_with_every_step_once(place):
    saved = latest(place.folder())
    assert saved is not None
    done = place.run()
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert f"continuing run {place.folder().name} from step {saved.step}; " in first
    assert "run_id=NEWNAME begins anew" in first
    assert "training continues after step" in done.stdout
    assert done.stdout.count("Cached") == 1  # the data set; a given model.path is not cached
    record = place.record()
    assert (record["status"], record["steps"]) == ("finished", NUM_STEPS)
    assert place.steps() == list(range(NUM_STEPS + 1))
    reasons = [attempt["reason"].partition(":")[0] for attempt in record["attempts"]]
    assert reasons == ["started", "continued after", "continued after"]
    assert 0 <= record["accuracy_before"] <= 1
    assert 0 <= record["accuracy_after"] <= 1
    assert sprung(place.traps) == ""  # nor has what evaluates and reports
    assert record["champion"].startswith("not promoted: cannot tell from its base model (p = 1,")
    stages = "generate base_model validate train prune evaluate promote report"
    assert sorted(record["timings_s"]) == sorted(stages.split())
    assert place.processes() == []
    folder = place.folder()
    assert (folder / "report.html").is_file()
    files = sorted(path.name for path in (folder / "rollouts").iterdir())
    assert files == [f"step_{step:06d}.parquet" for step in range(1, NUM_STEPS + 1)]
    shown = ("accuracy before", "accuracy after", "champion", "try next")
    for line in (*shown, str(folder / "report.html")):
        assert line in done.stdout


def test_the_engines_of_training_answered_as_new_ones_do(place):
    folder = place.folder()
    log = folder / "workers" / "evaluator.log"
    assert not log.exists()  # the rows were known: nobody was started for them
    answered = {file.name: read_rows(file) for file in (folder / "eval").glob("*.parquet")}
    shutil.rmtree(place.root / "evaluations")
    command = ["evaluate", f"run_id={folder.name}", f"storage.root={place.root}"]
    done = place.run(instead=command)
    assert done.returncode == 0, done.stderr
    assert log.exists()
    assert len(answered) == 2
    for name, rows in answered.items():
        assert read_rows(folder / "eval" / name) == rows


def test_a_truncated_data_set_fails_the_run_in_two_lines(place):
    (file,) = place.root.glob("data/*/train.parquet")
    file.write_bytes(file.read_bytes()[:1000])
    done = place.run("run_id=broken")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2
    assert "train.parquet" in done.stderr
    assert "log.txt" in done.stderr
    record = json.loads((place.root / "runs" / "broken" / "run.json").read_text())
    assert record["status"] == "failed"
    assert "train.parquet" in record["reason"]
    assert "Traceback" in (place.root / "runs" / "broken" / "log.txt").read_text()
