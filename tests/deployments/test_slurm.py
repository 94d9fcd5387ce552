"""slurm.sh with real Rays on loopback; commands of our own stand for Slurm's and for the run."""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import LIMIT_S, ROOT
from tests.support.programs import living
from tests.support.ray_head import RAY, environment_of_ray, free_ports
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MARK = "TEST_SLURM_MARK"
SCRIPT = ROOT / "deployments" / "slurm.sh"
SRUN = """#!/bin/bash
# All "nodes" are this machine: what has a fixed port takes a free one.
while [[ $1 == --* ]]; do shift; done
case "$*" in
hostname*) echo 127.0.0.2 ::1; exit ;;
*--head*) set -- "$@" --ray-client-server-port="$CLIENT_PORT" --temp-dir="$RAYS" ;;
ray*) set -- "$@" --node-ip-address=127.0.0.3 ;;
esac
[[ $1 == ray ]] && set -- "$@" --dashboard-agent-listen-port=0 --object-store-memory=100000000
exec "$@"
"""
SCONTROL = """#!/bin/bash
[[ $* == "show hostnames n[1-2]" ]] && printf 'n1\\nn2\\n'
"""
RUN = """#!{python}
import os, pathlib, signal, sys, time
import ray
address = sys.argv[2].removeprefix("resources.ray_address=")
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
held = ray.cluster_resources()
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), print("saved", flush=True), sys.exit(7)))
print(len(ray.nodes()), held["CPU"], *sys.argv[1:2], *sys.argv[3:], flush=True)
pathlib.Path("runs").touch()
while "wait=true" in sys.argv:
    time.sleep(0.1)
"""


@pytest.fixture
def allocation(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a batch script on two "nodes", where it was submitted."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    run = RUN.format(python=sys.executable)
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL), ("countdown-train", run)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (programs / "ray").symlink_to(RAY)
    python = programs / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    rays = tempfile.mkdtemp(prefix="sl-")  # short, for Ray's sockets
    port, client_port = free_ports(2)
    ours = {"RAYS": rays, "CLIENT_PORT": str(client_port), MARK: str(tmp_path)}
    ray = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1", "RAY_PORT": str(port)}
    job = {"SLURM_JOB_ID": "41", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CPUS_PER_TASK": "3"}
    yield environment_of_ray(tmp_path, SLURM_SUBMIT_DIR=str(tmp_path), **ours, **ray, **job)
    shutil.rmtree(rays, ignore_errors=True)
    assert [process.cmdline() for process in living(MARK, str(tmp_path))] == []


def test_all_nodes_join_with_a_token_and_nothing_stays_at_the_end(allocation, tmp_path):
    with subprocess.Popen(
        [SCRIPT, "preset=quickstart", "wait=true"],
        env=allocation,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as script:
        try:
            wait_for((tmp_path / "runs").exists, process=script)
            tokens = {p.environ().get("RAY_AUTH_TOKEN", "") for p in living(MARK, str(tmp_path))}
            words = [" ".join(p.cmdline()) for p in living(MARK, str(tmp_path))]
        finally:
            script.send_signal(signal.SIGTERM)  # as Slurm before the time is over
        said, complaints = script.communicate(timeout=LIMIT_S)
    assert script.returncode == 7, complaints
    lines = [line for line in said.splitlines() if line.startswith(("2 ", "saved"))]
    told = "run_id=slurm-41 preset=quickstart wait=true trainer.stop_grace_s=90"
    assert lines == [f"2 6.0 run {told}", "saved"], said
    (token,) = tokens - {""}
    assert len(token) == 64
    assert not [line for line in words if token in line]
    assert token not in said + complaints
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and token in p.read_text("latin-1")]
