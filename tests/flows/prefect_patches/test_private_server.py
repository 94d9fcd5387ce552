from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
