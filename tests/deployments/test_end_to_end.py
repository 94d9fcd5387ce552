"""The commands of docs/operations.md on a real server and worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.harness import WORKER, Prefect
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_nightly_schedule_makes_runs_within_a_minute(prefect: Prefect) -> None:
    """Prefect's scheduler fails silently with sqlalchemy 2.1: this notices."""
    wait_for(lambda: prefect.flow_runs("countdown-train-nightly") != [], limit_s=60)
    runs = prefect.flow_runs("countdown-train-nightly")
    assert {run["state_type"] for run in runs} == {"SCHEDULED"}
    assert all(run["auto_scheduled"] for run in runs)


def test_a_run_that_no_worker_takes_says_so(prefect: Prefect) -> None:
    def late() -> list[str]:
        runs = prefect.flow_runs("countdown-train-nightly")
        return [run["state"]["message"] for run in runs if run["state"]["name"] == "Late"]

    wait_for(late, limit_s=120)
    said = "No worker was there when it was due: `countdown-train serve` or `prefect worker start"
    assert late()[0].startswith(said)


def test_the_bare_name_makes_a_run_of_the_default_preset(prefect: Prefect) -> None:
    said = prefect.command("deployment", "run", "countdown-train")
    assert "for deployment 'countdown-train/countdown-train'" in said
    (run,) = prefect.flow_runs("countdown-train")
    assert run["state_type"] == "SCHEDULED"
    assert run["parameters"] == {"preset": "quickstart", "overrides": []}
    prefect.delete(run)


def test_outside_of_the_repository_the_profile_teaches_bare_names(
    prefect: Prefect, tmp_path: Path
) -> None:
    prefect.command("config", "set", "PREFECT_PLUGINS_ENABLED=true", cwd=tmp_path)
    said = prefect.command("deployment", "run", "countdown-train", cwd=tmp_path)
    assert "for deployment 'countdown-train/countdown-train'" in said
    (run,) = prefect.flow_runs("countdown-train")
    prefect.delete(run)
    with pytest.raises(AssertionError) as unknown:
        prefect.command("deployment", "run", "countdown", cwd=tmp_path)
    prefect.command("config", "unset", "PREFECT_PLUGINS_ENABLED", "--yes", cwd=tmp_path)
    assert "Deployment 'countdown' not found!" in str(unknown.value)
    assert "Traceback" not in str(unknown.value)


def test_a_worker_completes_a_run_asked_for_by_its_full_name(
    prefect: Prefect, tiny_overrides: list[str]
) -> None:
    root = prefect.folder / "out"
    tiny = [*tiny_overrides, f"storage.root={root}", "trainer.total_steps=2"]
    name = "countdown-train/countdown-train"
    prefect.command("deployment", "run", name, "--param", f"overrides={json.dumps(tiny)}")
    prefect.pause_nights()

    def is_over() -> bool:
        (run,) = prefect.flow_runs("countdown-train")
        assert run["state_type"] not in ("FAILED", "CRASHED", "CANCELLED"), prefect.logs()
        return bool(run["state_type"] == "COMPLETED")

    with prefect.running(*WORKER):
        wait_for(is_over)
    (run,) = prefect.flow_runs("countdown-train")
    (folder,) = (root / "runs").iterdir()
    assert folder.name.endswith(run["name"])
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["steps"]) == ("finished", 2)
    tasks = prefect.post("/task_runs/filter", {"limit": 200})
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    assert len(tasks) == 9
    artifacts = prefect.post("/artifacts/filter", {"limit": 200})
    keys = {artifact["key"] for artifact in artifacts}
    assert {"preflight", "validation", "training", "checkpoints", "evaluation", "report"} <= keys
    (training,) = (artifact for artifact in artifacts if artifact["key"] == "training")
    assert training["data"] == 100.0
