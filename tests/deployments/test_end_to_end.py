"""The README's commands on a real server and a real worker, on a free loopback port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).parent.parent.parent
PREFECT = str(Path(sys.executable).with_name("prefect"))
LIMIT_S = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


class Prefect:
    """A server of its own, seen through its commands and its API."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.folder = folder
        self.environment = {
            **os.environ,
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_RESULTS_LOCAL_STORAGE_PATH": str(folder / "storage"),
            "PREFECT_API_URL": self.api,
            "PYTHONPATH": str(ROOT),
        }

    def command(self, *arguments: str) -> str:
        done = subprocess.run(
            [PREFECT, *arguments],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """A command that goes on: stopped, with all it started, at the end of the block."""
        log = (self.folder / f"{arguments[0]}.log").open("w")
        process = subprocess.Popen(
            [PREFECT, *arguments],
            cwd=ROOT,
            env=self.environment,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            log.close()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = httpx.post(f"{self.api}{path}", json=body, timeout=60)
        answer.raise_for_status()
        return answer.json()

    def flow_runs(self, deployment: str) -> list[dict[str, Any]]:
        runs: list[dict[str, Any]] = self.post(
            "/flow_runs/filter", {"deployments": {"name": {"any_": [deployment]}}}
        )
        return runs

    def delete(self, run: dict[str, Any]) -> None:
        httpx.delete(f"{self.api}/flow_runs/{run['id']}", timeout=60).raise_for_status()

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.api}/health", timeout=5).is_success
        except httpx.TransportError:
            return False


def wait_for(condition: Callable[[], bool], limit_s: float = LIMIT_S) -> float:
    """Returns the seconds that it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < limit_s
        time.sleep(0.5)
    return time.monotonic() - start


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    """A server with both deployments, the nightly one due every minute."""
    folder = tmp_path_factory.mktemp("deployed")
    prefect = Prefect(folder)
    file = folder / "prefect.yaml"
    text = (ROOT / "deployments" / "prefect.yaml").read_text()
    assert text.count('cron: "0 1 * * *"') == 1
    file.write_text(text.replace('cron: "0 1 * * *"', 'cron: "* * * * *"'))
    with ExitStack() as stack:
        stack.enter_context(
            prefect.running("server", "start", "--host", "127.0.0.1", "--port", str(prefect.port))
        )
        wait_for(prefect.is_up)
        prefect.command("work-pool", "create", "countdown", "--type", "process")
        prefect.command("--no-prompt", "deploy", "--prefect-file", str(file), "--all")
        yield prefect


def test_the_file_as_it_lies_says_every_night_at_one() -> None:
    import yaml

    settings = yaml.safe_load((ROOT / "deployments" / "prefect.yaml").read_text())
    nightly = settings["deployments"][1]
    assert nightly["name"] == "countdown-train-nightly"
    (schedule,) = nightly["schedules"]
    assert (schedule["cron"], schedule["timezone"]) == ("0 1 * * *", "Europe/Berlin")


def test_the_nightly_schedule_makes_runs_within_a_minute(prefect: Prefect) -> None:
    """Prefect's scheduler fails silently with sqlalchemy 2.1: this notices."""
    wait_for(lambda: prefect.flow_runs("countdown-train-nightly") != [], limit_s=60)
    runs = prefect.flow_runs("countdown-train-nightly")
    assert {run["state_type"] for run in runs} == {"SCHEDULED"}
    assert all(run["auto_scheduled"] for run in runs)


def test_overlapping_nights_are_refused(prefect: Prefect) -> None:
    name = "/deployments/name/countdown-train/countdown-train-nightly"
    deployment = httpx.get(f"{prefect.api}{name}", timeout=60).json()
    assert deployment["global_concurrency_limit"]["limit"] == 1
    assert deployment["concurrency_options"]["collision_strategy"] == "CANCEL_NEW"


def test_presets_are_a_list_to_choose_from_in_the_form(prefect: Prefect) -> None:
    name = "/deployments/name/countdown-train/countdown-train"
    schema = httpx.get(f"{prefect.api}{name}", timeout=60).json()["parameter_openapi_schema"]
    assert "tinyzero-0.5b-24gb" in schema["properties"]["preset"]["enum"]
    assert schema["properties"]["overrides"]["type"] == "array"
    assert schema.get("required", []) == []


def test_the_bare_name_makes_a_run_of_the_default_preset(prefect: Prefect) -> None:
    said = prefect.command("deployment", "run", "countdown-train")
    assert "for deployment 'countdown-train/countdown-train'" in said
    (run,) = prefect.flow_runs("countdown-train")
    assert run["state_type"] == "SCHEDULED"
    assert run["parameters"] == {"preset": "quickstart", "overrides": []}
    prefect.delete(run)


def test_a_worker_completes_a_run_asked_for_by_its_full_name(
    prefect: Prefect, tiny_overrides: list[str]
) -> None:
    root = prefect.folder / "out"
    tiny = [*tiny_overrides, f"storage.root={root}", "trainer.total_steps=2"]
    name = "countdown-train/countdown-train"
    prefect.command("deployment", "run", name, "--param", f"overrides={json.dumps(tiny)}")
    night = httpx.get(f"{prefect.api}/deployments/name/{name}-nightly", timeout=60).json()
    prefect.post(f"/deployments/{night['id']}/pause_deployment", {})
    for run in prefect.flow_runs("countdown-train-nightly"):
        prefect.delete(run)

    def is_over() -> bool:
        (run,) = prefect.flow_runs("countdown-train")
        assert run["state_type"] not in ("FAILED", "CRASHED", "CANCELLED"), _logs(prefect)
        return bool(run["state_type"] == "COMPLETED")

    with prefect.running(
        "worker", "start", "--pool", "countdown", "--type", "process", "--limit", "1"
    ):
        wait_for(is_over)
    (run,) = prefect.flow_runs("countdown-train")
    (folder,) = (root / "runs").iterdir()
    assert folder.name.endswith(run["name"])
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["steps"]) == ("finished", 2)
    tasks = prefect.post("/task_runs/filter", {"limit": 200})
    assert {task["state_type"] for task in tasks} == {"COMPLETED"}
    assert len(tasks) == 8
    artifacts = prefect.post("/artifacts/filter", {"limit": 200})
    keys = {artifact["key"] for artifact in artifacts}
    assert {"preflight", "validation", "training", "checkpoints", "evaluation", "report"} <= keys


def _logs(prefect: Prefect) -> str:
    logs = prefect.post("/logs/filter", {"limit": 200, "sort": "TIMESTAMP_DESC"})
    return "\n".join(str(log["message"])[:2000] for log in logs)
