"""`countdown-train serve` as a person runs it: started, used, stopped, started again, broken."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest
import yaml
from prefect import get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows.cli import notifying, serve
from flows.errors import RunFailedError
from flows.prefect_patches.login import own_login
from flows.settings.night import NightSettings
from tests.flows.test_run import PROGRAM, Place
from tests.support.harness import LIMIT_S, ROOT, FlowRun, Prefect
from tests.support.http_server import answering
from tests.support.listeners import hook
from tests.support.programs import command_lines, run, started
from tests.support.strangers import NOBODY, STRANGER, fake_prefect_as, only_root
from tests.support.waiting import wait_for

_STOPPED_WITHIN_S = 300


class Served(Prefect):
    """A place for `serve`: a port and a PREFECT_HOME of its own, and a folder of runs."""

    def __init__(self, folder: Path, tiny_overrides: list[str]) -> None:
        often = {"PREFECT_WORKER_QUERY_SECONDS": "2", "PREFECT_WORKER_HEARTBEAT_SECONDS": "5"}
        super().__init__(folder, {**often, "TMPDIR": str(folder)})
        del self.environment["PREFECT_API_URL"]
        self.environment["PREFECT_SERVER_API_PORT"] = str(self.port)
        (folder / "prefect").mkdir(exist_ok=True)
        self.home = folder / "prefect"
        self.place = Place(folder, tiny_overrides)

    def serve(self) -> subprocess.Popen[str]:
        return started(*PROGRAM, "serve", cwd=self.folder, env=self.environment)

    def is_ready(self, since: datetime) -> bool:
        """Says whether a worker has polled for runs of the deployments."""
        if not self.is_up():
            return False
        try:
            workers = self.post("/work_pools/countdown/workers/filter", {})
        except httpx.HTTPStatusError:
            return False
        beats = [datetime.fromisoformat(worker["last_heartbeat_time"]) for worker in workers]
        return any(beat > since for beat in beats)

    def ends(self, process: subprocess.Popen[str]) -> tuple[int, str, str]:
        """Waits for the end of `serve`, at which nothing is left of all that it started."""
        out, err = process.communicate(timeout=_STOPPED_WITHIN_S)
        assert self.place.processes() == []
        return process.returncode, out, err


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, tiny_overrides: list[str]) -> Served:
    settings = [*tiny_overrides, "trainer.total_steps=200", "rollout.engine=hf"]
    return Served(tmp_path_factory.mktemp("served"), settings)


def ready(served: Served) -> subprocess.Popen[str]:
    started = datetime.now(UTC)
    process = served.serve()
    wait_for(lambda: served.is_ready(started), process=process)
    return process


def begun(served: Served, process: subprocess.Popen[str]) -> FlowRun:
    """Returns a run of the deployment that trains."""
    run = FlowRun(served, "countdown-train", served.place.arguments[1:])
    before = len(served.place.steps())
    wait_for(lambda: len(served.place.steps()) > max(before, 2), process=process)
    return run


def ends(served: Served) -> list[str]:
    """Returns how the runs of the deployment ended, which must be Crashed, by their messages."""
    states = [run["state"] for run in served.flow_runs("countdown-train")]
    assert {state["type"] for state in states} == {"CRASHED"}, states
    return sorted({state["message"] for state in states})


def change_in_the_ui(served: Served) -> None:
    """Has the night train another preset, and switches its schedule off."""
    night = served.deployment("countdown-train-nightly")
    parameters = {**night["parameters"], "preset": "overnight-cpu"}
    served.request("PATCH", f"/deployments/{night['id']}", {"parameters": parameters})
    (schedule,) = night["schedules"]
    path = f"/deployments/{night['id']}/schedules/{schedule['id']}"
    served.request("PATCH", path, {"active": False})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_it_serves_and_ctrl_c_stops_all_of_it(served):
    process = ready(served)
    said = [process.stdout.readline() for _ in range(6)] if process.stdout else []
    hints = [line.partition("from another terminal: ")[2] for line in said]
    looks = "".join(hints).replace(" run ", " inspect ")
    bare = {"PATH": "/bin:/usr/bin", "DO_NOT_TRACK": "1"}
    pasted = run("/bin/sh", "-c", looks, cwd="/", env=bare)
    assert "'flows.countdown_train.countdown_train'" in pasted.stdout, pasted.stderr
    second = served.serve()
    _, refused = second.communicate(timeout=LIMIT_S)
    assert second.returncode == 2
    (line,) = refused.splitlines()
    assert line.startswith(f"countdown-train: port {served.port} of 127.0.0.1 is not free")
    change_in_the_ui(served)
    served.post("/automations/", automation().model_dump(mode="json"))  # as a busy server may
    flow_run = begun(served, process)
    asks = (*PROGRAM, "serve", "status")
    status = run(*asks, cwd=served.folder, env=served.environment)
    up, night, goes_on = status.stdout.splitlines()
    assert up.startswith("serve   up since ")
    assert up.endswith(f": http://127.0.0.1:{served.port}")
    assert night.startswith(("night   next at ", "night   none: "))
    assert goes_on.startswith("run     ")
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = served.ends(process)
    assert "serve is not up" in run(*asks, cwd=served.folder, env=served.environment).stderr
    out = "".join([*said, out])
    assert (code, err) == (0, "")
    record = served.place.record()
    assert record["status"] == "interrupted"
    assert record["reason"].startswith("stopped by SIGTERM; ")
    assert record["flow_run_id"] == flow_run.id
    log = (served.place.folder() / "log.txt").read_text()
    assert f"run {record['run_id']} interrupted: " in log
    assert f"server       http://127.0.0.1:{served.port}\n" in out
    assert f"paste `cat {served.home}/countdown-train.login`\n" in out
    assert served.login not in out  # which somebody may keep as a log
    assert "\nnight        preset=quickstart at 01:00 (" in out


def child(process: subprocess.Popen[str], name: str) -> psutil.Process:
    """Returns the one process of `prefect NAME start`."""
    children = psutil.Process(process.pid).children()
    (found,) = [child for child, line in command_lines(children).items() if name in line.split()]
    return found


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_second_start_finds_all_as_it_was_and_server_and_worker_come_back(served):
    before = own_login(served.home)
    process = ready(served)
    assert served.login != before  # a page of another user's, at this port, may have read the old
    automations = served.post("/automations/filter", {})
    assert [each["name"] for each in automations] == ["countdown-train lost"]
    assert len(served.post("/deployments/filter", {})) == 4
    assert ends(served) == ["Execution was aborted by a termination signal."]

    flow_run = begun(served, process)
    with fake_prefect_as(STRANGER, served.port) as fake:
        killed = datetime.now(UTC)
        child(process, "server").kill()
        wait_for(lambda: served.is_ready(killed), process=process)
        assert fake.requests == []
    assert flow_run.is_in("Running")

    before = len(served.place.steps())
    child(process, "worker").kill()
    killed = datetime.now(UTC) + timedelta(seconds=5)  # its last heartbeat may still be on its way
    wait_for(lambda: len(served.place.steps()) > before, process=process)
    assert not served.is_ready(killed)  # a second run beside this one would share its memory
    for each in served.place.processes():
        if serve._is_flow_run(each) and not serve._is_flow_run(each.parent()):
            each.terminate()
    wait_for(lambda: served.is_ready(killed), process=process)
    os.killpg(process.pid, signal.SIGHUP)  # the terminal is closed
    code, out, err = served.ends(process)
    assert (code, err) == (0, "")
    assert "night        none: the schedule of nightly/countdown-train-nightly is switched" in out
    for name in ("server", "worker"):
        assert f"the {name} ended (killed by SIGKILL), see " in out
    record = served.place.record()
    assert record["status"] == "interrupted"
    assert record["reason"].startswith("stopped by SIGTERM; ")


@only_root
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_worker_and_run_tell_another_users_server_nothing(served):
    """They have the login in their environment, and look for their server for minutes."""
    process = ready(served)
    begun(served, process)
    orphans = served.place.processes()
    try:
        server = child(process, "server")
        process.kill()
        with fake_prefect_as(NOBODY, served.port) as fake:
            server.kill()
            wait_for(lambda: served.is_up())
            asked = len(fake.requests)
            assert asked == 1  # our own question
            before = len(served.place.steps())
            wait_for(lambda: len(served.place.steps()) > before + 10)
            time.sleep(12)  # a worker asks every 2 s, a run every 5
            assert fake.requests[1:] == []
    finally:
        for orphan in orphans:
            with suppress(psutil.Error):
                orphan.kill()
    process = ready(served)
    ends(served)  # a run that counts as running would have the next night cancelled
    os.killpg(process.pid, signal.SIGINT)
    served.ends(process)


@pytest.mark.parametrize("name", ["server", "worker"])
def test_what_ends_again_and_again_is_given_up(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(serve, "_PREFECT", (sys.executable, "-c", "raise SystemExit('broken')"))
    monkeypatch.setattr(serve, "_POLL_S", 0.05)
    monkeypatch.setattr(serve, "_STOPS", ())
    with temporary_settings({PREFECT_HOME: tmp_path}), serve._Processes() as processes:
        processes.start(name)
        with pytest.raises(RunFailedError) as caught:
            processes.watch({name: lambda: processes.start(name)})
    said = capsys.readouterr().out.splitlines()
    assert len([line for line in said if "it is started again" in line]) == 3
    assert f"the {name} is not started again: 3 restarts in 10 minutes" in said
    assert str(caught.value).startswith(f"the {name} ended (exit code 1), see ")
    assert str(caught.value).endswith("broken | broken | broken")


def test_it_stops_what_it_started_where_its_terminal_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "_PREFECT", (sys.executable, "-c", "import time; time.sleep(99)"))
    monkeypatch.setattr(serve, "_STOPS", ())
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w", buffering=1) as nowhere:
        monkeypatch.setattr(sys, "stdout", nowhere)
        with temporary_settings({PREFECT_HOME: tmp_path}), serve._Processes() as processes:
            processes.start("worker")
            worker = processes._started["worker"]
    assert worker.poll() is not None


def automation(**changes: Any) -> AutomationCore:
    data = yaml.safe_load((ROOT / "deployments" / "automations.yaml").read_text())
    lost: dict[str, Any] = data["automations"][0]
    return AutomationCore.model_validate(lost | changes)


@pytest.mark.parametrize(
    ("status", "outcome"), [(404, nullcontext()), (409, pytest.raises(httpx.HTTPStatusError))]
)
def test_an_automation_that_is_gone_is_deleted(status, outcome):
    """A busy server may delete it and still answer 503. The repeat then gets 404."""
    with (
        answering(status) as url,
        temporary_settings({PREFECT_API_URL: url}),
        get_client(sync_client=True) as client,
        outcome,
    ):
        serve.delete_if_there(client, uuid4())


def test_only_an_automation_that_says_something_else_is_changed():
    """A change makes the server forget for which runs' heartbeats it waits."""
    assert serve.says_the_same(automation(), automation())
    assert serve.says_the_same(automation(enabled=False), automation())
    trigger = automation().trigger.model_dump(mode="json")
    assert not serve.says_the_same(automation(trigger=trigger | {"within": 30}), automation())
    assert not serve.says_the_same(automation(description="other"), automation())


@pytest.fixture
def notify(cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`notify(code, webhook="NAME")` runs `notify test` with such a night's file."""

    def run(code: int, **night: object) -> Any:
        (tmp_path / "night.yaml").write_text(json.dumps(night))
        monkeypatch.setattr(notifying, "NIGHT_FILE", tmp_path / "night.yaml")
        return cli("notify", "test", code=code, root=None)

    return run


def test_a_message_comes_to_all_whom_the_file_names(notify, tmp_path, monkeypatch):
    code = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
    command = [sys.executable, "-c", code, str(tmp_path / "told")]
    with hook() as server:
        monkeypatch.setenv("NIGHT_HOOK", server.url)
        printed = notify(0, webhook="NIGHT_HOOK", command=command)
    (told,) = server.told
    assert told["event"] == "test"
    assert told == json.loads((tmp_path / "told").read_text())
    assert printed.out.splitlines() == [
        "the webhook: got the message",
        f"the command {sys.executable}: got the message",
    ]


def test_who_did_not_get_it_is_an_error_and_so_is_nobody(notify, monkeypatch):
    with hook(500) as server:
        monkeypatch.setenv("NIGHT_HOOK", server.url)
        assert "the webhook: 127.0.0.1 answered 500" in notify(1, webhook="NIGHT_HOOK").out
    assert "names no webhook and no command" in notify(2).err


def test_a_night_of_settings_that_do_not_exist_is_refused_at_the_start(cli, monkeypatch):
    monkeypatch.setattr(serve, "read_night", lambda: NightSettings(overrides=("actor.lrr=1",)))
    assert (
        "night.yaml: overrides: unknown setting 'actor.lrr'; did"
        in cli("serve", code=2, root=None).err
    )
