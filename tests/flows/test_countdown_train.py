"""What the flow adds to its stages: retries with a condition."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, get_client
from prefect.runtime import flow_run

from flows import countdown_train as module
from flows.runs.run_record import recorded
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.errors import OutOfMemory, RayNotStarted, Stalled, WorkerDied
from rl_core.resources.oom_recovery import in_words
from rl_core.runs.run_folder import RunFolder
from tasks import train
from tasks.prefect_ui.attempts import settings_in_force
from tests.flows.test_flow_run_page import Page
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_harness")]


class Attempts:
    """Stands for `Training.train`: each call ends with the next of these, and notes settings."""

    def __init__(self, *endings: Exception | int) -> None:
        self._endings = iter(endings)
        self.settings: list[RunConfig] = []

    def __call__(self, config: RunConfig, run: RunFolder, **others: Any) -> int:
        self.settings.append(config)
        done = config.trainer.save_freq * len(self.settings)
        run.metrics.append(done, {"reward/accuracy": 0.5})
        save_checkpoint(run.path, done, lambda folder: None, accuracy=None)
        ending = next(self._endings)
        if isinstance(ending, Exception):
            raise ending
        return ending


class Training:
    """The train task in a flow run, as `countdown_train` calls it, seen through Prefect's API."""

    def __init__(self, root: Path, attempts: Attempts, monkeypatch: Any, **resources: int) -> None:
        monkeypatch.setattr(train, "train_supervised", attempts)
        sections = {"storage": {"root": root}, "retry": {"delay_s": 0}, "resources": resources}
        self.config = RunConfig.model_validate({"run_id": "r"} | sections)
        self.run = RunFolder.create(self.config)
        self._root = root

    def __call__(self) -> int:
        @flow
        def training() -> int:
            self._flow_run_id = UUID(flow_run.get_id())
            with recorded(self.run):
                retried = module.retried_train(self.config, self.run)
                return retried(self.config, self.run, self._root, self._root)

        return training()

    def task_run_name(self) -> str:
        with get_client(sync_client=True) as client:
            page = Page(self._flow_run_id, client)
            wait_for(page.ended)  # events are written a moment later
            (name,) = page.names()
        return name

    def artifact(self, key: str) -> Any:
        with get_client(sync_client=True) as client:
            return Page(self._flow_run_id, client).artifact(key).data

    def changes(self) -> list[str]:
        return [in_words(attempt.changes) for attempt in self.run.read().attempts]


OUT_OF_MEMORY = OutOfMemory("update_actor", "tried to allocate 2.3 GiB")


@pytest.mark.chaos
def test_each_retry_takes_the_next_recovery_step_and_says_which(tmp_path, monkeypatch, survived):
    attempts = Attempts(OUT_OF_MEMORY, OUT_OF_MEMORY, 300)
    training = Training(tmp_path, attempts, monkeypatch)
    assert training() == 300
    first, second, third = attempts.settings
    assert first == training.config
    assert second.model.gradient_checkpointing
    assert second.resources == first.resources
    assert (third.model.gradient_checkpointing, third.resources.learner_threads) == (True, 1)
    changes = ["", "model.gradient_checkpointing=true", "resources.learner_threads=1"]
    assert training.changes() == changes
    name = "train attempt 3 after out of memory in update_actor: resources.learner_threads=1"
    assert training.task_run_name() == f"{name}, from step 200"
    table = json.loads(training.artifact("attempts"))
    assert [row["attempt"] for row in table] == [1, 2, 3]
    assert [row["from step"] for row in table] == [0, 100, 200]
    reasons = [row["why"].replace("\n", " ") for row in table]
    assert reasons == ["started", str(OUT_OF_MEMORY), str(OUT_OF_MEMORY)]
    assert [row["changed settings"] for row in table] == changes
    log = (training.run.path / "log.txt").read_text()
    told = f"attempt 2, from step 100 with model.gradient_checkpointing=true: {OUT_OF_MEMORY}"
    assert f"WARNING prefect.task_runs: {told}" in log
    # A run that is continued, here or from the UI, has the settings of its last attempt.
    again = settings_in_force(training.config, RunFolder.create(training.config))
    assert again == third
    rows = [row["step"] for row in training.run.metrics.read()]
    survived("OOM", "below the smallest micro-batch", rows_lost=len({100, 200, 300} - set(rows)))


@pytest.mark.chaos
def test_a_ladder_that_is_exhausted_says_what_was_tried(tmp_path, monkeypatch, survived):
    no_room = OutOfMemory("save", "16 GiB")
    attempts = Attempts(*[no_room] * 9)
    training = Training(tmp_path, attempts, monkeypatch, rollout_gpus=1)
    with pytest.raises(OutOfMemory) as caught:
        training()
    tried = "checkpoints.in_background=false"
    assert training.changes() == ["", tried]
    assert str(caught.value) == (
        f"out of memory in save: 16 GiB; no further recovery step helps: tried {tried}"
    )
    assert len(attempts.settings) == 2
    name = f"train attempt 2 after out of memory in save: {tried}, from step 100"
    assert training.task_run_name() == name
    record = training.run.read()
    assert record.reason == str(caught.value)
    assert record.next_step is not None
    page = training.artifact("report")
    assert "no further recovery step helps" in page
    assert record.next_step.split(",")[0] in page
    survived("OOM", "an exhausted ladder", rows_lost=2 - len(training.run.metrics.read()))


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (WorkerDied("learner", "it is gone (killed?)"), "checkpoints.in_background=false"),
        (WorkerDied("Ray", "it did not start (The node timed out during startup)"), ""),
        (Stalled("gen", "no progress for 1800 s"), ""),
    ],
    ids=["a process died", "Ray was slow", "a stall"],
)
def test_only_a_second_death_costs_a_setting(tmp_path, monkeypatch, error, last):
    attempts = Attempts(error, error, 300)
    training = Training(tmp_path, attempts, monkeypatch)
    assert training() == 300
    assert attempts.settings[:2] == [training.config, training.config]
    assert training.changes() == ["", "", last]


def test_a_ray_that_does_not_start_is_tried_once_more(tmp_path, monkeypatch):
    error = RayNotStarted("Ray", "it did not start (No space left on device)")
    training = Training(tmp_path, Attempts(error, error, 300), monkeypatch)
    with pytest.raises(RayNotStarted):
        training()
    assert training.changes() == ["", ""]
    next_step = str(training.run.read().next_step)
    assert next_step.startswith("countdown-train preflight names leftovers, a full folder")
    assert "dmesg" not in next_step


def test_a_mistake_is_not_retried(tmp_path, monkeypatch):
    attempts = Attempts(ValueError("a setting is wrong"))
    training = Training(tmp_path, attempts, monkeypatch)
    with pytest.raises(ValueError, match="a setting is wrong"):
        training()
    assert len(training.run.read().attempts) == 1
    assert training.task_run_name() == "train"
