from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

START = """
from flows.prefect_patches.private_server import start_private_server
server = start_private_server()
server.connect()
"""


@pytest.mark.slow
def test_the_first_two_runs_on_a_machine_may_start_at_once(tmp_path: Path) -> None:
    """Each starts a server, and the first server of a PREFECT_HOME makes its database."""
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    runs = [
        subprocess.Popen([sys.executable, "-c", START], env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said


@pytest.mark.slow
def test_a_server_ends_with_a_run_that_is_killed(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}
    environment["PREFECT_HOME"] = str(tmp_path / "prefect")
    wait = "print(server._process.pid, flush=True); input()"
    run = subprocess.Popen(
        [sys.executable, "-c", START + wait],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with run:
        assert run.stdout is not None
        server = psutil.Process(int(run.stdout.readline()))
        run.kill()
    _, left = psutil.wait_procs([server], timeout=120)
    for process in left:
        process.kill()
    assert not left
