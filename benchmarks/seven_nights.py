"""Seven nights in a row under `countdown-train serve`, with five faults, as a team would see them.

    .venv/bin/python -m benchmarks.seven_nights FOLDER      (half an hour on two cores)

The shipped preset at few steps, started by Prefect's own schedule every three minutes: a quiet
night; the server killed; no memory for the learner; a misspelt setting; a night that is not over
when the next is due; that next one, refused; and the worker killed, `serve` started again, and
Retry. FOLDER then holds what `serve` printed, the messages as they were received, the table
`sql nights`, and two pictures of Prefect's pages.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil

from tests.support.browser import open_browser
from tests.support.harness import ROOT, FlowRun, Prefect, hungry_after
from tests.support.listeners import Hook, hook
from tests.support.programs import cli, living
from tests.support.waiting import wait_for

NIGHTLY: Final = "countdown-train-nightly"
_PERIOD: Final = "*/3 * * * *"
_STEPS: Final = 24
_LIMIT_S: Final = 900.0
_DRAWN_MS: Final = 3_000
_OVER: Final = ("Completed", "Failed", "Crashed", "Cancelled", "Refused")


class Night(FlowRun):
    """A flow run that the schedule created."""

    def __init__(self, prefect: Prefect, run: dict[str, Any]) -> None:
        self._prefect, self.id, self.name = prefect, str(run["id"]), str(run["name"])

    def change(self, **body: object) -> None:
        """Changes the run before it starts."""
        self._prefect.request("PATCH", f"/flow_runs/{self.id}", body)

    def trainers(self) -> list[psutil.Process]:
        """Returns the living processes that train."""
        return living("PREFECT__FLOW_RUN_ID", self.id, "tasks.supervision.child trainer")


class Team:
    """A `serve` with a folder of its own, and the messages that it sends."""

    def __init__(self, folder: Path, told_to: Hook) -> None:
        self.prefect = Prefect(folder, {"TMPDIR": str(folder), "NIGHT_HOOK": told_to.url})
        del self.prefect.environment["PREFECT_API_URL"]
        self.prefect.environment["PREFECT_SERVER_API_PORT"] = str(self.prefect.port)
        self.folder, self.told, self.seen = folder, told_to.told, set[str]()

    def serve(self) -> subprocess.Popen[bytes]:
        """Starts it as a person would."""
        code = "from flows.cli.main import main; main()"
        with (self.folder / "serve.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", code, "serve"],
                cwd=self.folder,
                env=self.prefect.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def nights(self) -> list[dict[str, Any]]:
        """Returns the schedule's flow runs, the earliest first."""
        runs = [run for run in self.prefect.flow_runs(NIGHTLY) if run["auto_scheduled"]]
        return sorted(runs, key=lambda run: str(run["expected_start_time"]))

    def next(self) -> Night:
        """Returns the schedule's next night that was not returned before."""

        def waiting() -> list[dict[str, Any]]:
            return [
                run
                for run in self.nights()
                if run["id"] not in self.seen and run["state_name"] == "Scheduled"
            ]

        wait_for(waiting, seen=self.prefect.logs)
        night = Night(self.prefect, waiting()[0])
        self.seen.add(night.id)
        return night

    def over(self, night: Night, what: str) -> None:
        """Waits for a night's end and prints it."""

        def is_over() -> bool:
            with suppress(httpx.TransportError):  # the server is not there yet again
                return night.is_in(*_OVER)
            return False

        wait_for(is_over, _LIMIT_S, poll_s=1, seen=self.prefect.logs)
        name, message = night.states()[-1]
        print(f"{time.strftime('%H:%M:%S')}  {night.name}: {what}: {name}: {message}", flush=True)


def main() -> None:
    """Runs the nights, and prints how each ended."""
    folder = Path(sys.argv[1]).resolve()
    (folder / "prefect").mkdir(parents=True)
    file = ROOT / "deployments" / "night.yaml"
    if file.exists():
        sys.exit(f"{file} is yours: run this in another checkout")
    # The part that takes the memory away handles one thread of a learner.
    short = [f"trainer.total_steps={_STEPS}", "trainer.save_freq=4", "resources.learner_threads=1"]
    overrides = [f"storage.root={folder / 'outputs'}", *short]
    night = {"at": _PERIOD, "overrides": overrides, "webhook": "NIGHT_HOOK"}
    file.write_text(json.dumps(night))
    try:
        with hook() as told_to:
            team = Team(folder, told_to)
            served = team.serve()
            try:
                served = live(team, overrides, served)
                look(team)
            finally:
                served.terminate()
                served.wait(_LIMIT_S)
    finally:
        file.unlink()


def live(
    team: Team, overrides: list[str], served: subprocess.Popen[bytes]
) -> subprocess.Popen[bytes]:
    """Runs the nights one after the other; returns the `serve` that runs in the end."""
    wait_for(team.prefect.is_up, process=served)
    night = team.next()
    team.over(night, "quiet")

    night = team.next()
    in_training(night)
    kill(team, "server start")
    team.over(night, "the server killed")

    night = team.next()
    night.change(job_variables={"env": hungry_after(5)})
    team.over(night, "no memory after step 5")

    night = team.next()
    wrong = [*overrides, "trainer.total_stepz=5"]
    night.change(parameters={**night.read()["parameters"], "overrides": wrong})
    team.over(night, "a misspelt setting")

    night, late = team.next(), team.next()
    in_training(night)
    (trainer, *_) = night.trainers()
    trainer.suspend()
    try:
        team.over(late, "due while the one before is not over")
    finally:
        trainer.resume()
    team.over(night, "held up")

    night = team.next()
    in_training(night)
    kill(team, "worker start")
    served.wait(_LIMIT_S)
    served = team.serve()
    wait_for(team.prefect.is_up, process=served)
    team.over(night, "the worker killed, and with it `serve`, which was started again")
    if not night.is_in("Completed"):
        wait_for(lambda: team.prefect.post("/work_pools/countdown/workers/filter", {}))
        print("Retry:", night.retry(), flush=True)
        wait_for(lambda: not night.is_in(*_OVER))
        team.over(night, "retried")
    return served


def in_training(night: Night) -> None:
    """Waits for its trainer, and for a step or two."""
    wait_for(night.trainers, _LIMIT_S, poll_s=1)
    time.sleep(10)


def kill(team: Team, what: str) -> None:
    """Kills one of Prefect's own processes under `serve`."""
    home = str(team.folder / "prefect")

    def ours() -> list[psutil.Process]:
        return living("PREFECT_HOME", home, f"prefect {what}")

    for process in ours():
        os.kill(process.pid, signal.SIGKILL)


def look(team: Team) -> None:
    """Keeps what a person would look at in the morning."""
    root, log = team.folder / "outputs", team.folder / "prefect" / "serve" / "server.log"
    table = cli("sql", "nights", f"storage.root={root}", cwd=team.folder).stdout
    (team.folder / "nights.txt").write_text(table)
    (team.folder / "messages.json").write_text(json.dumps(team.told, indent=1))
    with open_browser(1280, 1100, logged_in=team.prefect) as pages:
        pages.page.goto(f"{team.prefect.url}/runs")
        pages.page.wait_for_timeout(_DRAWN_MS)
        pages.page.screenshot(path=team.folder / "runs.png")
        done = [run for run in team.nights() if run["state_name"] == "Completed"]
        pages.show_flow_run(team.prefect, done[-1]["id"], "artifacts")
        pages.page.wait_for_timeout(_DRAWN_MS)
        pages.page.screenshot(path=team.folder / "night.png")
    print(table)
    for message in team.told:
        print(message["event"], "-", message["text"], end="\n\n")
    print(f"server.log: {log.stat().st_size} bytes")


if __name__ == "__main__":
    main()
