"""A Prefect server of the test's own, its workers, and what runs under them."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import httpx
import psutil

from flows.prefect_patches.login import login_file
from tests.support import programs
from tests.support.ray_head import free_ports
from tests.support.waiting import wait_for

ROOT = Path(__file__).parent.parent.parent
BENCHMARKS = ROOT / "benchmarks"
WORKER = ("worker", "start", "--pool", "countdown", "--type", "process", "--limit", "1")
LIMIT_S = 600
_STOP_TIMEOUT_S = 30
_ATTEMPTS = 8
_NO_TLS = False  # reading the certificates would cost 20 ms of CPU a question


class Prefect:
    """A server of its own, seen through its commands and its API."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        self.api = f"{self.url}/api"
        self.folder = folder
        self._csrf: dict[str, str] = {}
        own = {"PREFECT_API_URL": self.api, "PYTHONPATH": str(ROOT)}
        self.environment = programs.own_prefect(folder / "prefect") | own | dict(settings)

    def command(self, *arguments: str, cwd: Path = ROOT) -> str:
        done = programs.run(
            programs.PREFECT, *arguments, cwd=cwd, env=self.environment, timeout_s=LIMIT_S
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a command that keeps running, in a process group of its own."""
        with (self.folder / f"{arguments[0]}.log").open("a") as log:
            return subprocess.Popen(
                [programs.PREFECT, *arguments],
                cwd=ROOT,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_server(self) -> None:
        self._server = self.start(
            "server", "start", "--host", "127.0.0.1", "--port", str(self.port)
        )
        wait_for(self.is_up)

    def stop_server(self) -> None:
        stop(self._server)

    @contextmanager
    def up(self) -> Iterator[Self]:
        """Its server is up within the block."""
        self.start_server()
        try:
            yield self
        finally:
            self.stop_server()

    def kill_server(self) -> None:
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    @contextmanager
    def running(self, *arguments: str) -> Iterator[None]:
        """A command that continues: stopped, with all it started, at the end of the block."""
        process = self.start(*arguments)
        try:
            yield
        finally:
            stop(process)

    def deploy(self, replacements: Mapping[str, str] = {}, **night: object) -> str:
        """Makes work pool and deployments, or brings them up to date; returns what is printed.

        In the deployments' file texts are replaced, and `night` is what the night's own file holds.
        """
        own = self.folder / "night.yaml"
        own.write_text(json.dumps(night))
        texts = {"{{ $PWD }}/deployments/night.yaml": str(own), **replacements}
        file = edited(ROOT / "deployments" / "prefect.yaml", self.folder, texts)
        by_name = {"work_pools": {"name": {"any_": ["countdown"]}}}
        if not self.post("/work_pools/filter", by_name):
            self.command("work-pool", "create", "countdown", "--type", "process")
        return self.command("--no-prompt", "deploy", "--prefect-file", str(file), "--all")

    def is_up(self) -> bool:
        try:
            return httpx.get(f"{self.api}/health", timeout=5, verify=_NO_TLS).is_success
        except httpx.TransportError:
            return False

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Returns what the API answers; like Prefect's client it asks again while it is busy."""
        for attempt in range(_ATTEMPTS):
            answer = self._send(method, path, body)
            if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(attempt)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def _send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """Asks as Prefect's own clients do: with the login, and a token for each change."""
        auth = httpx.BasicAuth(*self.login.split(":", 1))
        with httpx.Client(auth=auth, timeout=LIMIT_S, trust_env=False, verify=_NO_TLS) as client:
            answer = client.request(method, self.api + path, json=body, headers=self._csrf)
            if answer.status_code == httpx.codes.FORBIDDEN:
                asked = client.get(f"{self.api}/csrf-token", params={"client": "tests"})
                token = asked.raise_for_status().json()["token"]
                self._csrf = {"Prefect-Csrf-Client": "tests", "Prefect-Csrf-Token": token}
                answer = client.request(method, self.api + path, json=body, headers=self._csrf)
        return answer

    @property
    def login(self) -> str:
        return login_file(self.folder / "prefect").read_text().strip()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self.request("POST", path, body)

    def deployment(self, name: str) -> dict[str, Any]:
        by_name = {"deployments": {"name": {"any_": [name]}}}
        found: list[dict[str, Any]] = self.post("/deployments/filter", by_name)
        assert len(found) == 1, name
        return found[0]

    def flow_runs(self, deployment: str) -> list[dict[str, Any]]:
        by_name = {"deployments": {"name": {"any_": [deployment]}}}
        return list(self.post("/flow_runs/filter", by_name))

    def pause_nights(self) -> None:
        """Stops the schedule and takes back the runs that it has made."""
        night = self.deployment("countdown-train-nightly")
        self.post(f"/deployments/{night['id']}/pause_deployment", {})
        for run in self.flow_runs("countdown-train-nightly"):
            self.delete(run)

    def disable_automations(self) -> None:
        """Leaves a run alone that a busy machine keeps from telling that it lives."""
        for automation in self.post("/automations/filter", {}):
            self.request("PATCH", f"/automations/{automation['id']}", {"enabled": False})

    def delete(self, run: dict[str, Any]) -> None:
        self.request("DELETE", f"/flow_runs/{run['id']}")

    def logs(self) -> str:
        logs = self.post("/logs/filter", {"limit": 200, "sort": "TIMESTAMP_DESC"})
        return "\n".join(str(log["message"])[:2000] for log in logs)


class FlowRun:
    """A run of a deployment, as its server and its processes show it.

    It is made here: its processes have these variables beside the worker's own.
    """

    def __init__(
        self,
        prefect: Prefect,
        deployment: str,
        overrides: list[str],
        environment: Mapping[str, str] = {},
        **parameters: object,
    ) -> None:
        found = prefect.deployment(deployment)
        made = prefect.post(
            f"/deployments/{found['id']}/create_flow_run",
            {
                "parameters": {"overrides": overrides, **parameters},
                "job_variables": {"env": dict(environment)},
                "state": {"type": "SCHEDULED"},
            },
        )
        self._prefect = prefect
        self.id = str(made["id"])
        self.name = str(made["name"])

    def read(self) -> dict[str, Any]:
        return dict(self._prefect.request("GET", f"/flow_runs/{self.id}"))

    def set_state(self, kind: str, *, force: bool = False, **more: object) -> str:
        """Asks for a state of a type, as the UI does, and returns what the server answers."""
        body = {"state": {"type": kind, **more}, "force": force}
        return str(self._prefect.post(f"/flow_runs/{self.id}/set_state", body)["status"])

    def retry(self) -> str:
        """Has a worker run it again, as Retry in the UI does."""
        return self.set_state("SCHEDULED", name="AwaitingRetry", message="Retry from the UI")

    def suspend(self, timeout_s: float = 3600) -> str:
        """Asks that it leaves and waits, as Suspend in the UI does (whose default is 300 s)."""
        until = datetime.now(UTC) + timedelta(seconds=timeout_s)
        details = {"pause_timeout": until.isoformat(), "pause_reschedule": True}
        return self.set_state("PAUSED", name="Suspended", state_details=details)

    def resume(self) -> str:
        """Has a worker continue with it, as Resume in the UI does."""
        return str(self._prefect.post(f"/flow_runs/{self.id}/resume", {})["status"])

    def logs(self) -> list[str]:
        """Returns the lines of its log, as its page shows them."""
        asked = {"logs": {"flow_run_id": {"any_": [self.id]}}, "sort": "TIMESTAMP_ASC"}
        return [str(log["message"]) for log in self._prefect.post("/logs/filter", asked)]

    def tasks(self) -> dict[str, list[str]]:
        """Returns the states' names of its task runs, by the task, oldest first."""
        asked = {"flow_runs": {"id": {"any_": [self.id]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found: dict[str, list[str]] = {}
        for task in self._prefect.post("/task_runs/filter", asked):
            name = task["task_key"].partition("_task")[0]
            found.setdefault(name, []).append(task["state_name"])
        return found

    def artifacts(self) -> dict[str, Any]:
        """Returns its artifacts by their keys; the newest where a key has several."""
        asked = {"flow_runs": {"id": {"any_": [self.id]}}, "sort": "UPDATED_DESC"}
        found = self._prefect.post("/artifacts/filter", asked)
        return {artifact["key"]: artifact for artifact in reversed(found)}

    def is_in(self, *names: str) -> bool:
        """Says whether the state has one of these names."""
        return self.read()["state"]["name"] in names

    def ends(self, state: str = "Completed", limit_s: float = LIMIT_S) -> None:
        """Waits for its end, which must be in this state."""
        wait_for(lambda: self.is_in("Completed", "Failed", "Crashed", "Cancelled"), limit_s)
        assert self.is_in(state), self._prefect.logs()

    def states(self) -> list[tuple[str, str]]:
        """Returns name and message of all its states, oldest first."""
        states = self._prefect.request("GET", f"/flow_run_states/?flow_run_id={self.id}")
        states.sort(key=lambda state: state["timestamp"])
        return [(state["name"], state["message"] or "") for state in states]

    def processes(self) -> list[psutil.Process]:
        """Returns what lives of all that its flow run started."""
        return programs.living("PREFECT__FLOW_RUN_ID", self.id)

    def main_process(self) -> psutil.Process:
        """Returns the process of the flow itself, which all others descend from."""
        ours = self.processes()
        pids = {process.pid for process in ours}
        (main,) = [process for process in ours if process.ppid() not in pids]
        return main


def hungry_after(num_steps: int) -> dict[str, str]:
    """Returns what has a flow run's first learner run out of memory, see hungry/."""
    hungry = ROOT / "tests" / "support" / "hungry"
    return {"PYTHONPATH": f"{hungry}:{ROOT}", "HUNGRY_AFTER_STEPS": str(num_steps)}


def edited(file: Path, folder: Path, replacements: Mapping[str, str]) -> Path:
    """Returns a copy of a file in which each text, found once, is replaced."""
    text = file.read_text()
    for old, new in replacements.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    copy = folder / file.name
    copy.write_text(text)
    return copy


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stops a process with its group, if it is not gone yet."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def benchmark(name: str) -> ModuleType:
    """Returns a script of benchmarks/, which is no package, as a module."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.append(str(BENCHMARKS))  # they import each other
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
