"""The other flows under a real worker: a night fails and is told of, retried, killed, pruned."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.runs.lookup import settings_of_run
from rl_core.runs.run_folder import RunFolder
from tests.support.champions import crown
from tests.support.harness import WORKER, FlowRun, Prefect
from tests.support.listeners import SECRET, Hook, hook
from tests.support.runs import short, steps_below
from tests.support.waiting import wait_for

NIGHTLY = "countdown-train-nightly"
_WORKERS_SAY_S = 5

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Place:
    """A worker, a storage root, and a webhook that the worker knows by a variable."""

    def __init__(self, prefect: Prefect, told_to: Hook, overrides: list[str]) -> None:
        self.prefect, self.hook = prefect, told_to
        self.root = prefect.folder / "nights"
        self.root.mkdir()
        self.told = self.root / "told.jsonl"
        self.overrides = [*overrides, f"storage.root={self.root}"]
        self.first: RunFolder

    def night(self, *more: str) -> FlowRun:
        """Asks for a night; its command appends what it is told to a file."""
        code = f"open({str(self.told)!r}, 'a').write(input() + '\\n')"
        command = [sys.executable, "-c", code]
        overrides = [*self.overrides, *more]
        return FlowRun(self.prefect, NIGHTLY, overrides, webhook="NIGHT_HOOK", command=command)

    def run(self, flow_run: FlowRun) -> RunFolder:
        (folder,) = (self.root / "runs").glob(f"*-{flow_run.name}")
        return RunFolder(folder)


def shows(flow_run: FlowRun, expected: dict[str, list[str]]) -> None:
    """Waits until the server has the task runs, too: they come a moment after the flow run."""

    def shown() -> dict[str, list[str] | None]:
        there = flow_run.tasks()
        return {name: there.get(name) for name in expected}

    wait_for(lambda: shown() == expected, limit_s=120, seen=shown)


@pytest.fixture(scope="module")
def place(prefect: Prefect, tiny_overrides: list[str]) -> Iterator[Place]:
    prefect.pause_nights()
    with hook() as told_to:
        prefect.environment["NIGHT_HOOK"] = told_to.url
        place = Place(prefect, told_to, short(tiny_overrides, save_freq=1, test_freq=100))
        with prefect.running(*WORKER):
            yield place
        del prefect.environment["NIGHT_HOOK"]


def test_retrying_a_failed_night_does_only_what_failed(place):
    in_the_way = place.root / "evaluations"
    in_the_way.touch()
    night = place.night("trainer.total_steps=3")
    night.ends("Failed")

    run = place.first = place.run(night)
    done = ["generate", "base_model", "validate", "train", "prune"]
    shows(night, {**{name: ["Completed"] for name in done}, "evaluate": ["Failed"]})
    assert "promote" not in night.tasks()
    (told,) = place.hook.told
    assert (told["event"], told["run_id"], told["steps"]) == ("failed", run.run_id, 3)
    assert str(in_the_way) in told["reason"]
    assert told["champion"] is None
    assert [json.loads(line) for line in place.told.read_text().splitlines()] == [told]
    metrics = run.metrics.path.read_bytes()

    in_the_way.unlink()
    # Nothing tells when the worker has had its say on the end of a process, which must not fall
    # upon the retry.
    wait_for(lambda: not night.processes())
    time.sleep(_WORKERS_SAY_S)
    assert night.retry() == "ACCEPT"
    wait_for(lambda: night.read()["run_count"] == 2)
    night.ends()
    again = {name: ["Completed", "Cached"] for name in done}
    again |= {"evaluate": ["Failed", "Completed"], "promote": ["Completed"]}
    shows(night, {**again, "report": ["Completed"]})
    assert run.metrics.path.read_bytes() == metrics
    record = run.read()
    assert (record.status, record.steps) == ("finished", 3)
    assert record.accuracy_after is not None
    assert (run.path / "report.html").is_file()
    assert [told["event"] for told in place.hook.told] == ["failed", "finished"]


def test_any_checkpoint_is_evaluated_from_a_form(place):
    name = place.first.run_id
    asked = {"checkpoint": name, "against": f"{name}/base"}
    root = [f"storage.root={place.root}"]
    evaluation = FlowRun(place.prefect, "countdown-train-evaluate", root, **asked)
    evaluation.ends()
    table = evaluation.artifacts()["evaluation"]
    columns = list(json.loads(table["data"])[0])
    assert columns == ["measure", f"{name}/step_000003", f"{name}/base"]
    assert f"{name}/step_000003 against {name}/base: cannot tell" in table["description"]


def test_pruning_leaves_what_must_stay_and_says_why(place):
    overrides = [f"storage.root={place.root}", "checkpoints.keep_last=0"]
    pruning = FlowRun(place.prefect, "countdown-train-prune", overrides)
    pruning.ends()
    rows = json.loads(pruning.artifacts()["pruned"]["data"])
    assert {row["run"] for row in rows} == {place.first.run_id}
    kept = {row["what"] for row in rows if row["decision"] == "kept"}
    there = {path.name for path in (place.first.path / "checkpoints").glob("step_*")}
    assert "step_000003" in kept == there
    assert len(kept) < len(rows) == 3


@pytest.mark.chaos
def test_a_killed_night_is_told_of_and_goes_on_from_the_same_champion(place, survived):
    config = settings_of_run(place.first)
    champion = crown(config, place.first, Path(str(place.first.read().data)))
    place.hook.told.clear()
    night = place.night("trainer.total_steps=20")

    def steps() -> list[int]:
        return steps_below(place.root, f"*-{night.name}")

    wait_for(lambda: len(steps()) > 3)
    run = place.run(night)
    assert run.read().model == str(champion)
    killed_at = max(steps())
    os.kill(night.main_process().pid, signal.SIGKILL)
    wait_for(lambda: place.hook.told)
    (told,) = place.hook.told
    assert (told["event"], told["run_id"]) == ("failed", run.run_id)
    assert told["champion"] == f"{place.first.run_id}/step_000003"
    assert "killed by SIGKILL (often by the kernel, because memory ran out)" in told["reason"]
    assert re.search(r"Retry continues from step \d+", told["next_step"])
    assert f"what to do next: {told['next_step']}" in told["text"]
    assert night.id in told["flow_run"]
    wait_for(lambda: not night.processes(), limit_s=60)

    wait_for(lambda: night.is_in("Crashed"))
    time.sleep(_WORKERS_SAY_S)  # as above
    assert night.retry() == "ACCEPT"
    wait_for(lambda: night.read()["run_count"] == 2)
    night.ends()
    assert run.read().model == str(champion)
    shows(night, {"start": ["Completed", "Cached"]})
    assert steps() == list(range(21))
    log = (run.path / "log.txt").read_text()
    (resumed_at,) = map(int, re.findall(r"training continues after step (\d+)", log))
    survived("SIGKILL", "flow run of a night", steps_lost=max(killed_at - resumed_at, 0))


def test_the_webhooks_url_is_nowhere(place):
    assert all(path.endswith(SECRET) for path in place.hook.paths)
    parts = SECRET.split("/")
    logs = place.prefect.post("/logs/filter", {"limit": 200})
    artifacts = place.prefect.post("/artifacts/filter", {"limit": 200})
    runs = place.prefect.flow_runs(NIGHTLY)
    shown = json.dumps([logs, artifacts, runs])
    files = [file for file in place.root.rglob("*") if file.is_file()]
    assert any(file.name == "log.txt" for file in files)
    for part in parts:
        assert part not in shown
        assert not [file for file in files if part.encode() in file.read_bytes()]
