"""What a night has beside the pipeline: where it starts, and who is told how it ended."""

import logging
import os
import platform
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from prefect.blocks.system import Secret
from prefect.client.schemas.objects import FlowRun
from prefect.states import Cancelled

from flows import nightly as module
from flows.errors import BadInputError
from flows.nightly import Night, killed, message, nightly, tell_of_end
from flows.settings.night import is_sent
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.runs.lock import close_if_lost, owned
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import alone_in
from tasks.generate import generate_dataset
from tasks.messages import Listeners, notify, webhook_url
from tasks.preflight_checks import PreflightError
from tasks.start import Start
from tests.support.champions import crown
from tests.support.listeners import Hook, hook

EXITED = "Process exited with status code: {}. Typically caused by memory."
DUE = datetime(2026, 11, 25, 1, tzinfo=UTC)


class Pipeline:
    """Stands for `run_pipeline`: a run whose copy of the model is promoted, or that fails."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self.error: Exception | None = None
        self.promotes = True
        self.configs: list[RunConfig] = []
        self.start_was_held = False

    def __call__(self, config: RunConfig, **record: str) -> RunFolder:
        self.configs.append(config)
        run = RunFolder.create(config)
        run.update(**record)
        if config.model.path != str(self._model):
            with alone_in(Path(str(config.model.path)), wait=False) as alone:
                self.start_was_held = not alone
        if self.error is not None:
            run.update(status="failed", reason=str(self.error), next_step="look")
            raise self.error
        data = generate_dataset(config)
        run.update(data=str(data), steps=3, accuracy_before=0.25, accuracy_after=0.75)
        run.update(status="finished", timings_s={"train": 90.0}, champion="not promoted: no gain")
        save_checkpoint(
            run.path, 3, lambda to: shutil.copytree(self._model, to, dirs_exist_ok=True), 0.75
        )
        (run.path / "report.html").touch()
        if self.promotes:
            crown(config, run, data)
        return run


class Place:
    def __init__(self, root: Path, model: Path, pipeline: Pipeline, told_to: Hook) -> None:
        self.root, self.pipeline, self._hook = root, pipeline, told_to
        self._model = model
        sizes = ("data.train_size=8", "data.test_size=8", "data.train_batch_size=4")
        self._overrides = (f"storage.root={root}", *sizes, "actor.mini_batch_size=4")

    def night(self, *overrides: str, model: Path | None = None, **parameters: Any) -> Any:
        self._hook.told.clear()
        asked = (f"model.path={model or self._model}", *self._overrides, *overrides)
        return nightly(overrides=asked, webhook=self._hook.url, **parameters)

    def newest(self) -> RunFolder:
        """Returns the run that was made last."""
        return max(RunFolder.all_under(self.root), key=lambda run: run.read().started_at)

    @property
    def told(self) -> list[dict[str, Any]]:
        return self._hook.told


@pytest.fixture
def place(tmp_path: Path, tiny_model_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    pipeline = Pipeline(tiny_model_path)
    monkeypatch.setattr(module, "run_pipeline", pipeline)
    with hook() as told_to:
        yield Place(tmp_path / "out", tiny_model_path, pipeline, told_to)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_nights_go_on_from_the_champion_and_tell_of_each_promotion(place, tiny_model_path):
    first = place.night()
    (told,) = place.told
    name = f"{first['run_id']}/step_000003"
    assert told["text"].splitlines()[:3] == [
        f"{first['run_id']} promoted: {told['reason']}",
        "accuracy 0.250 -> 0.750",
        f"3 steps in 1.5 min on {platform.node()}",
    ]
    assert told["text"].splitlines()[-2:] == [
        f"flow run: {told['flow_run']}",
        f"report: {told['report']} on {platform.node()}",
    ]
    assert first["started_from"].startswith("afresh: no champion of countdown in")
    assert told["reason"].startswith("better than its base model (p = 0.0078")
    run = {"event": "promoted", "run_id": first["run_id"], "steps": 3, "next_step": None}
    accuracies = {"accuracy_before": 0.25, "accuracy_after": 0.75, "accuracy_champion": 1.0}
    report = str(place.root / "runs" / first["run_id"] / "report.html")
    assert told == told | run | accuracies | {"champion": name, "report": report}

    place.pipeline.promotes = False
    second = place.night()
    (told,) = place.told  # the champion is another's
    assert (told["event"], told["reason"]) == ("finished", "not promoted: no gain")
    assert told["started_from"].startswith(f"the champion {name}, accuracy 1.000, instead of model")
    assert f", started from the champion {name}" in told["text"]
    place.night(events=["failed", "promoted"])
    assert place.told == []
    assert second["night"] < place.newest().read().night
    afresh = place.night(start_from="afresh")
    assert afresh["run_id"] not in (first["run_id"], None)
    champion = place.root / "runs" / first["run_id"] / "checkpoints" / "step_000003"
    starts = [config.model.path for config in place.pipeline.configs]
    assert starts == [str(tiny_model_path), str(champion), str(champion), str(tiny_model_path)]
    assert [config.seed for config in place.pipeline.configs] == [0, 1, 2, 3]
    assert place.pipeline.start_was_held


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_a_failure_is_told_of_and_stays_a_failure(place):
    place.pipeline.error = OSError("no space at https://me:hunter2@example.com/x")
    with pytest.raises(OSError, match="no space"):
        place.night("run_id=broken")
    (told,) = place.told
    assert (told["event"], told["run_id"], told["steps"]) == ("failed", "broken", 0)
    assert told["reason"] == "OSError: no space at https://***@example.com/x"
    assert (told["champion"], told["report"], told["next_step"]) == (None, None, "look")

    with pytest.raises(BadInputError):
        place.night("actr.lr=1")
    (told,) = place.told
    assert (told["event"], told["run_id"]) == ("failed", None)
    assert "did you mean actor.lr?" in told["reason"]
    with pytest.raises(PreflightError, match="there is no such folder"):
        place.night(model=place.root / "nothing")


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_a_secret_block_holds_the_webhooks_url():
    with hook() as server:
        Secret(value=server.url).save("night-hook")
        notify(Listeners("night-hook"), {"event": "failed"}, logging.getLogger(__name__))
    assert server.told == [{"event": "failed"}]
    with pytest.raises(ValueError, match="neither a URL nor names"):
        webhook_url("no-such-block")


@pytest.fixture
def night(tmp_path: Path) -> Night:
    config = RunConfig.model_validate({"storage": {"root": tmp_path}, "run_id": "calm-fox"})
    RunFolder.create(config)
    return Night(FlowRun(flow_id=uuid4(), expected_start_time=DUE), config)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "its process was killed by SIGKILL (often by the kernel, because memory ran out)"),
        (-11, "its process ended: killed by SIGSEGV"),
        (3, "its process ended: exit code 3"),
    ],
)
def test_a_killed_process_is_told_of_in_words_with_the_step_to_go_on_from(night, code, words):
    assert killed(night, EXITED.format(code)) == words
    assert night.run.read().next_step == "Retry starts it again"
    save_checkpoint(night.run.path, 4, lambda folder: (folder / "x").touch(), None)
    assert killed(night, EXITED.format(code)) == words
    record = night.run.read()
    assert (record.status, record.reason) == ("interrupted", words)
    told = message("failed", night, words)
    assert told["next_step"] == "Retry continues from step 4"
    lines = told["text"].splitlines()
    assert lines[0] == f"calm-fox failed: {words}"
    assert "what to do next: Retry continues from step 4" in lines


def test_a_killed_night_has_the_steps_and_minutes_that_it_took(night):
    run = night.run
    run.metrics.append(31, {"reward/accuracy": 0.5})
    run.update(timings_s={"generate": 20.0})
    (run.path / "log.txt").touch()
    started = datetime.fromisoformat(run.read().attempts[0].started_at).timestamp()
    os.utime(run.path / "log.txt", (started + 1860, started + 1860))
    for _ in range(2):
        killed(night, EXITED.format(-9))
    assert run.read().steps == 31
    assert f"31 steps in 31 min on {platform.node()}" in message("failed", night, "died")["text"]


def test_a_run_that_lost_its_process_has_them_too(night):
    run = night.run
    run.metrics.append(4, {"reward/accuracy": 0.5})
    (run.path / "log.txt").touch()
    started = datetime.fromisoformat(run.read().attempts[0].started_at).timestamp()
    os.utime(run.path / "log.txt", (started + 60, started + 60))
    with owned(run):
        pass
    close_if_lost(run)
    record = run.read()
    assert (record.status, record.steps) == ("interrupted", 4)
    assert sum(record.timings_s.values()) == pytest.approx(60, abs=1)


def test_a_night_that_got_worse_says_why_and_what_to_do(night):
    for step, share in {0: 0.1, 100: 0.406, 400: 0.25}.items():
        night.run.metrics.append(step, {"val/accuracy": share, "critic/kl": 1.1})
    night.run.update(status="finished", steps=400)
    told = message("worse", night, "not promoted: worse than the champion a (p = 0.01)")
    assert told["event"] == "worse"
    (diagnosis,) = told["diagnosis"]
    assert diagnosis.startswith("the best test was step 100, and the end is lower (val/accuracy")
    assert f"diagnosis: {diagnosis}" in told["text"]
    assert "what to do next: the next night starts from its base model" in told["text"]


@pytest.mark.parametrize(
    ("event", "events", "sent"),
    [
        ("worse", ["finished"], True),
        ("worse", ["worse"], True),
        ("finished", ["worse"], False),
        ("refused", ["failed"], True),
        ("cancelled", ["failed", "promoted", "finished"], True),
        ("cancelled", ["promoted", "finished"], False),
    ],
)
def test_a_file_of_before_gets_the_new_events_with_their_kind(event, events, sent):
    assert is_sent(event, events) is sent


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ("interrupted", "cancelled; saved at step 4; Retry in the UI continues from there"),
        ("running", "Flow run was cancelled successfully."),
        (None, "cancelled before it began to train"),
    ],
)
def test_a_cancelled_night_is_told_of_in_the_worker(night, status, reason):
    overrides = (f"storage.root={night.config.storage.root}",)
    if status is not None:
        night.run.update(night=night.due, status=status, reason=reason)
    with hook() as server:
        flow_run = night.flow_run.model_copy(
            update={"parameters": {"overrides": overrides, "webhook": server.url}}
        )
        state = Cancelled(message="Flow run was cancelled successfully.")
        tell_of_end(nightly, flow_run, state)
    (told,) = server.told
    assert (told["event"], told["reason"]) == ("cancelled", reason)
    assert told["run_id"] == (None if status is None else "calm-fox")


def test_without_a_run_the_night_is_named_by_its_hour(night):
    failed = message("failed", Night(night.flow_run), "no such preset")
    assert failed["run_id"] is None
    assert failed["text"].splitlines()[0] == (
        "the night of 2026-11-25T01:00:00+00:00 failed: no such preset"
    )


def test_a_start_against_the_setting_is_a_warning(night):
    start = Start(folder=None, why="the champion a/step_000001 is gone", is_as_asked=False)
    told = message("finished", Night(night.flow_run, night.config, start), "not promoted")
    assert "warning: it started afresh: the champion a/step_000001 is gone" in told["text"]
    no_champion_yet = start.model_copy(update={"is_as_asked": True})
    told = message("finished", Night(night.flow_run, night.config, no_champion_yet), "no")
    assert "warning" not in told["text"]
