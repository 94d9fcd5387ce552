import os
import shutil
import subprocess
import sys
from contextlib import suppress

import psutil
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from rl_core.config.run import ResourcesConfig, RunConfig
from rl_core.system.process_group import PROCESS_GROUP, new_group
from rl_core.workers import ray_auth
from tasks.preflight_checks import Finding
from tasks.preflight_checks import surroundings as module
from tasks.preflight_checks.surroundings import cluster_findings, left_processes, leftover_findings
from tests.support.faults import leave_free, mounted_small_disk
from tests.support.http_server import answering

PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 15, 36
"""Of <sys/prctl.h>."""

NOBODY = "http://127.0.0.1:9/api"


def found() -> list[Finding]:
    return list(leftover_findings())


def test_what_answers_at_prefects_address_is_asked_what_it_is():
    with answering(200) as url, temporary_settings({PREFECT_API_URL: url}):
        assert [finding for finding in found() if finding.check == "prefect"] == []
    with answering(404) as url, temporary_settings({PREFECT_API_URL: url}):
        (prefect,) = (finding for finding in found() if finding.check == "prefect")
    assert prefect.level == "fatal"
    words = "is no Prefect server (HTTP 404): another program may have its port"
    assert f"PREFECT_API_URL={url} {words}" in prefect.message
    with answering(200, beside_health=401) as url, temporary_settings({PREFECT_API_URL: url}):
        (prefect,) = (finding for finding in found() if finding.check == "prefect")
    assert prefect.message == f"PREFECT_API_URL={url} refuses the login"
    assert "PREFECT_API_AUTH_STRING=name:password" in prefect.remedy


def test_a_server_that_is_gone_stops_a_run_but_no_command_that_needs_none(cli):
    settings = ["data.train_size=256", "data.test_size=16"]
    with temporary_settings({PREFECT_API_URL: NOBODY}):
        (line,) = cli("run", *settings, code=2).err.splitlines()
        assert f"PREFECT_API_URL={NOBODY} does not answer (127.0.0.1:9: " in line
        assert "`prefect server start`, or unset PREFECT_API_URL" in line
        cli("generate", *settings)


def test_a_disk_on_which_prefect_has_no_room_is_a_warning(tmp_path):
    with mounted_small_disk(tmp_path) as disk:
        leave_free(disk, 4096)
        home = disk / "not" / "there" / "yet"
        with temporary_settings({PREFECT_HOME: home}, restore_defaults={PREFECT_API_URL}):
            (prefect,) = (finding for finding in found() if finding.check == "prefect")
    assert prefect.level == "warning"
    assert f"Prefect keeps its records in {home}, where 0 MiB are free" in prefect.message


@pytest.mark.parametrize("owner", ["none", "dead", "living"])
def test_daemons_without_a_driver_are_named_and_those_of_a_living_run_are_not(tmp_path, owner):
    """`sleep` under a daemon's name, first with its driver, then adopted by what is none.

    If the run's own process lives, it ends what its killed trainer left.
    """
    group = new_group()  # of this process
    another = group.replace("-", "-0", 1)  # of the same pid, which started at another time
    groups = {"none": {}, "dead": {PROCESS_GROUP: another}, "living": {PROCESS_GROUP: group}}
    daemon = tmp_path / "rl-session" / "raylet"
    daemon.parent.mkdir()
    shutil.copy(shutil.which("sleep") or "/bin/sleep", daemon)
    driver_code = f"""
import subprocess, time
print(subprocess.Popen([{str(daemon)!r}, "600"]).pid, flush=True)
time.sleep(600)
"""
    # As an init of a name of its own: the machine's may be a Python program, like a driver.
    adopter_code = f"""
import ctypes, subprocess
libc = ctypes.CDLL(None)
assert libc.prctl({PR_SET_CHILD_SUBREAPER}, 1) == libc.prctl({PR_SET_NAME}, b"adopter") == 0
driver = subprocess.Popen([{sys.executable!r}, "-c", {driver_code!r}])
driver.wait()
print("orphaned", flush=True)
input()
"""
    adopter = subprocess.Popen(
        ["adopter", "-c", adopter_code],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **groups[owner]},
    )
    left_behind = psutil.Process(int(adopter.stdout.readline()))
    driver = left_behind.parent()
    try:
        assert left_behind.name() == "raylet"
        assert left_behind not in left_processes()
        driver.kill()
        assert adopter.stdout.readline() == "orphaned\n"
        assert left_behind.ppid() == adopter.pid
        if owner == "living":
            assert left_behind not in left_processes()
            return
        assert left_behind in left_processes()
        (finding,) = (finding for finding in found() if finding.check == "leftovers")
        assert finding.level == "warning"
        assert str(left_behind.pid) in finding.remedy.split()[1:]
    finally:
        with suppress(psutil.NoSuchProcess):
            driver.kill()
        left_behind.kill()
        adopter.kill()
        adopter.communicate()


def test_a_ray_address_of_the_environment_is_named_and_not_used(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert list(cluster_findings(RunConfig())) == []
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    (ray,) = cluster_findings(RunConfig())
    assert ray.level == "ok"
    assert "RAY_ADDRESS=127.0.0.1:9 is not used, the run starts a Ray of its own" in ray.message


def test_an_automatic_address_that_leads_nowhere_is_fatal(tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for reader in (module, ray_auth):
        monkeypatch.setattr(reader, "RAY_CLUSTER_FILE", tmp_path / "ray_current_cluster")
    auto = RunConfig(resources=ResourcesConfig(ray_address="auto"))
    (none,) = cluster_findings(auto)
    assert none.level == "fatal"
    assert "finds no Ray (ray start was not called here)" in none.message
    (tmp_path / "ray_current_cluster").write_text("127.0.0.1:9\n")
    (stale,) = cluster_findings(auto)
    assert stale.level == "fatal"
    assert "which means 127.0.0.1:9, finds no Ray (127.0.0.1:9: " in stale.message
    assert f"after removing {tmp_path / 'ray_current_cluster'}" in stale.remedy


def test_a_full_folder_for_rays_sockets_is_fatal(tmp_path, monkeypatch):
    with mounted_small_disk(tmp_path) as disk:
        monkeypatch.setattr(module, "short_temp_root", lambda: str(disk))
        leave_free(disk, 4096)
        (finding,) = [finding for finding in found() if finding.check == "temp"]
    assert finding.level == "fatal"
    assert str(finding).startswith(f"{disk}, where Ray keeps its sockets and logs, has ")
    assert "set TMPDIR to a folder with a short path" in str(finding)
