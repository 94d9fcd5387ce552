"""What a night has beside the pipeline: where it starts, and who is told how it ended."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect.blocks.system import Secret

from flows import nightly as module
from flows.nightly import nightly
from flows.settings.compose import SettingsError
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from rl_core.system.atomic import alone_in
from tasks.generate import generate_dataset
from tasks.prefect_ui.notify import Listeners, notify, webhook_url
from tests.support.champions import crown
from tests.support.listeners import Hook, hook


class Pipeline:
    """Stands for `run_pipeline`: a run whose copy of the model is promoted, or that fails."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self.error: Exception | None = None
        self.promotes = True
        self.configs: list[RunConfig] = []
        self.start_was_held = False

    def __call__(self, config: RunConfig) -> RunFolder:
        self.configs.append(config)
        run = RunFolder.create(config)
        if config.model.path != str(self._model):
            with alone_in(Path(str(config.model.path)), wait=False) as alone:
                self.start_was_held = not alone
        if self.error is not None:
            run.update(status="failed", reason=str(self.error), next_step="look")
            raise self.error
        data = generate_dataset(config)
        run.update(data=str(data), steps=3, accuracy_before=0.25, accuracy_after=0.75)
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
        self._overrides = (
            f"storage.root={root}",
            f"model.path={model}",
            "data.train_size=8",
            "data.test_size=8",
            "data.train_batch_size=4",
            "actor.mini_batch_size=4",
        )

    def night(self, *overrides: str, **parameters: Any) -> dict[str, Any]:
        self._hook.told.clear()
        asked = (*self._overrides, *overrides)
        record: dict[str, Any] = nightly(overrides=asked, webhook=self._hook.url, **parameters)
        return record

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
def test_nights_go_on_from_the_champion_and_tell_of_each_promotion(
    place: Place, tiny_model_path: Path
) -> None:
    first = place.night()
    (told,) = place.told
    name = f"{first['run_id']}/step_000003"
    assert told["text"] == f"{first['run_id']} promoted: {told['reason']}"
    assert told["reason"].startswith("better than its base model (p = 0.0078")
    assert (
        told
        | {
            "event": "promoted",
            "run_id": first["run_id"],
            "steps": 3,
            "accuracy_before": 0.25,
            "accuracy_after": 0.75,
            "champion": name,
            "accuracy_champion": 1.0,
            "next_step": None,
            "report": str(place.root / "runs" / first["run_id"] / "report.html"),
        }
        == told
    )

    place.pipeline.promotes = False
    place.night()
    assert place.told == []  # the champion is another's
    afresh = place.night(start_from="afresh")
    assert afresh["run_id"] not in (first["run_id"], None)
    champion = place.root / "runs" / first["run_id"] / "checkpoints" / "step_000003"
    starts = [config.model.path for config in place.pipeline.configs]
    assert starts == [str(tiny_model_path), str(champion), str(tiny_model_path)]
    assert place.pipeline.start_was_held


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_a_failure_is_told_of_and_stays_a_failure(place: Place) -> None:
    place.pipeline.error = OSError("no space at https://me:hunter2@example.com/x")
    with pytest.raises(OSError, match="no space"):
        place.night("run_id=broken")
    (told,) = place.told
    assert (told["event"], told["run_id"], told["steps"]) == ("failed", "broken", 0)
    assert told["reason"] == "OSError: no space at https://***@example.com/x"
    assert (told["champion"], told["report"], told["next_step"]) == (None, None, "look")

    with pytest.raises(SettingsError):
        place.night("actr.lr=1")
    (told,) = place.told
    assert (told["event"], told["run_id"]) == ("failed", None)
    assert "did you mean actor.lr?" in told["reason"]


def test_the_form_explains_every_parameter() -> None:
    schema = nightly.parameters.model_dump()
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["properties"]["start_from"]["enum"] == ["champion", "afresh"]
    assert schema["required"] == []


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_a_secret_block_holds_the_webhooks_url() -> None:
    with hook() as server:
        Secret(value=server.url).save("night-hook")
        notify(Listeners("night-hook"), {"event": "failed"}, logging.getLogger(__name__))
    assert server.told == [{"event": "failed"}]
    with pytest.raises(ValueError, match="neither a URL nor names"):
        webhook_url("no-such-block")
