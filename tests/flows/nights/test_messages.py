from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from flows.nights.messages import Night, killed, message
from rl_core.checkpoints.store import save_checkpoint
from rl_core.config.run import RunConfig
from rl_core.runs.run_folder import RunFolder
from tasks.start import Start

EXITED = "Flow run process exited with non-zero status code {}."
DUE = datetime(2026, 11, 25, 1, tzinfo=UTC)


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
    assert told["next_step"] == "Retry goes on from step 4"
    lines = told["text"].splitlines()
    assert lines[0] == f"calm-fox failed: {words}"
    assert "what to do next: Retry goes on from step 4" in lines


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
