import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from tests.support.programs import own_prefect, python
from tests.support.strangers import STRANGER, fake_prefect_as

START = """
from flows.prefect_patches.private_server import start_private_server
server = start_private_server()
server.connect()
"""
ATTACK = """
import httpx, os
api = os.environ["PREFECT_API_URL"]
login = tuple(os.environ["PREFECT_API_AUTH_STRING"].split(":"))
for auth in (None, ("countdown-train", "guess"), login):
    made = httpx.post(f"{api}/flows/", json={"name": "x"}, auth=auth, headers={"Origin": "http://x"})
    assert "access-control-allow-origin" not in made.headers
    print(made.status_code)
told = open(f"/proc/{server._process.pid}/cmdline").read()
assert login[1] not in told
"""


def environment_of(home: Path, *, is_new: bool = False) -> dict[str, str]:
    return own_prefect(home, is_new=is_new) | {"http_proxy": "http://127.0.0.1:9"}


@pytest.mark.slow
def test_only_its_run_can_use_it_or_its_port_and_it_ends_with_one_that_is_killed(tmp_path):
    """A port that stands in a command line, and is free for the seconds of imports, is taken."""
    wait = "print(server._process.pid, flush=True); input()"
    with (
        fake_prefect_as(STRANGER) as fake,
        subprocess.Popen(
            [sys.executable, "-c", START + ATTACK + wait],
            env=environment_of(tmp_path / "prefect"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as run,
    ):
        assert run.stdout is not None
        *answers, pid = (run.stdout.readline().strip() for _ in range(4))
        assert answers == ["401", "401", "201"]
        assert fake.requests == []
        server = psutil.Process(int(pid))
        run.kill()
    _, left = psutil.wait_procs([server], timeout=120)
    for process in left:
        process.kill()
    assert not left


@pytest.mark.slow
def test_a_server_that_does_not_start_says_why_and_what_to_do(tmp_path):
    newer, file = tmp_path / "newer", tmp_path / "file"
    newer.mkdir()
    file.touch()
    with closing(sqlite3.connect(newer / "prefect.db")) as database:
        database.execute("create table alembic_version (version_num varchar(32) not null)")
        database.execute("insert into alembic_version values ('of_a_newer_prefect')")
        database.commit()
    said = {"of_a_newer_prefect": newer, "Not a directory": file / "home"}
    for why, home in said.items():
        done = python(START, env=environment_of(home, is_new=True), timeout_s=300)
        *_, reason, remedy = done.stderr.splitlines()
        assert "the private Prefect server did not start: " in reason
        assert why in reason
        assert str(home) in remedy
        assert "PREFECT_HOME=FOLDER" in remedy


@pytest.mark.slow
def test_the_first_two_runs_on_a_machine_may_start_at_once(tmp_path):
    """Each starts a server, and the first server of a PREFECT_HOME makes its database."""
    environment = environment_of(tmp_path / "prefect", is_new=True)
    runs = [
        subprocess.Popen([sys.executable, "-c", START], env=environment, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
