"""Stages that a retried flow run does not repeat, by Prefect's own retries of a flow."""

from pathlib import Path

import pytest
from prefect import flow, task
from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tasks.prefect_ui.flow_run import once_per_flow_run, once_per_training
from tests.support.runs import new_run


class Stages:
    """A flow of two stages that fails once, behind them; notes what was done."""

    def __init__(self, root: Path, *, trains_on: bool = False) -> None:
        self.done: list[str] = []
        config, run = RunConfig(), new_run(root)

        @task(persist_result=True, result_serializer="json", cache_key_fn=once_per_flow_run)
        def train(config: RunConfig, run: RunFolder) -> int:
            self.done.append("train")
            return 7

        @task(persist_result=True, result_serializer="json", cache_key_fn=once_per_training)
        def evaluate(config: RunConfig, run: RunFolder) -> None:
            self.done.append("evaluate")

        @flow(retries=1)
        def stages() -> None:
            is_first = not self.done
            assert train(config, run) == 7
            evaluate(config, run)
            if is_first:
                if trains_on:
                    run.metrics.append(8, {})
                raise OSError("the report could not be written")

        self.run = stages


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
@pytest.mark.parametrize("trains_on", [False, True])
def test_a_retry_does_what_is_left_and_what_training_outdated(tmp_path, trains_on):
    stages = Stages(tmp_path, trains_on=trains_on)
    stages.run()
    once = ["train", "evaluate"]
    assert stages.done == ([*once, "evaluate"] if trains_on else once)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_results_that_cannot_be_kept_cost_nothing_but_the_repetition(tmp_path):
    in_the_way = tmp_path / "storage"
    in_the_way.touch()
    stages = Stages(tmp_path / "out")
    with temporary_settings({PREFECT_LOCAL_STORAGE_PATH: in_the_way}):
        stages.run()
    assert stages.done == ["train", "evaluate"] * 2
