"""What the flow adds to its stages: retries with a condition, and a form with a list of presets."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from prefect import flow, task

from flows import countdown_train as module
from flows.compose import PresetName
from flows.countdown_train import countdown_train, is_worth_retrying
from rl_core.config import RetryConfig, RunConfig, StorageConfig
from rl_core.errors import OutOfMemory, WorkerDied
from rl_core.tracking import RunFolder


def test_the_form_offers_the_presets_and_explains_both_parameters() -> None:
    schema = countdown_train.parameters.model_dump()
    assert schema["properties"]["preset"]["enum"] == list(get_args(PresetName))
    assert schema["properties"]["preset"]["default"] == "quickstart"
    assert schema["properties"]["overrides"]["default"] == []
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["required"] == []


def test_memory_and_lost_processes_are_worth_a_retry_and_mistakes_are_not() -> None:
    assert is_worth_retrying(OutOfMemory("update", "2.3 GiB"))
    assert is_worth_retrying(WorkerDied("engine_0", "SIGKILL"))
    assert not is_worth_retrying(ValueError("a setting"))
    assert not is_worth_retrying(None)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
@pytest.mark.parametrize(
    ("error", "num_calls", "is_saved"),
    [
        (OutOfMemory("update", "2.3 GiB"), 2, True),
        (OutOfMemory("update", "again and again"), 3, False),
        (ValueError("a setting is wrong"), 1, False),
    ],
)
def test_the_train_task_is_retried_for_a_reason_and_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    num_calls: int,
    is_saved: bool,
) -> None:
    calls = []

    @task
    def train(config: RunConfig, run: RunFolder, data: Path, model_path: Path) -> int:
        calls.append(run.run_id)
        if not is_saved or len(calls) < num_calls:
            raise error
        return 7

    monkeypatch.setattr(module, "train_task", train)
    config = RunConfig(
        run_id="r", storage=StorageConfig(root=tmp_path), retry=RetryConfig(delay_s=0)
    )
    run = RunFolder.create(config)

    @flow
    def training() -> int:
        return module._retried_train(config, run)(config, run, tmp_path, tmp_path)

    if is_saved:
        assert training() == 7
    else:
        with pytest.raises(type(error)):
            training()
    assert calls == ["r"] * num_calls
    retries = [attempt.reason for attempt in run.read().attempts[1:]]
    assert retries == [str(error)] * (num_calls - 1)
