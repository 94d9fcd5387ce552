"""The commands of docs/operations.md on a real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.harness import Prefect
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def test_the_nightly_schedule_makes_runs_within_a_minute(prefect: Prefect) -> None:
    """Prefect's scheduler fails silently with sqlalchemy 2.1: this notices."""
    wait_for(lambda: prefect.flow_runs("countdown-train-nightly") != [], limit_s=60)
    runs = prefect.flow_runs("countdown-train-nightly")
    assert {run["state_type"] for run in runs} == {"SCHEDULED"}
    assert all(run["auto_scheduled"] for run in runs)


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


def test_the_full_name_takes_overrides(prefect: Prefect) -> None:
    overrides = ["seed=1", "actor.lr=1e-4"]
    name = "countdown-train/countdown-train"
    prefect.command("deployment", "run", name, "--param", f"overrides={json.dumps(overrides)}")
    (run,) = prefect.flow_runs("countdown-train")
    prefect.delete(run)
    assert run["parameters"] == {"preset": "quickstart", "overrides": overrides}
