"""A Ray cluster of a test's own: a head on loopback that needs a token."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.waiting import wait_for

RAY = str(Path(sys.executable).with_name("ray"))
LOOPBACK = {
    # Else `ray start` takes the machine's address for 127.0.0.1, and binds to all of them.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",  # on a busy machine
}
_OPTIONS = ("--num-cpus=4", "--object-store-memory=200000000", "--include-dashboard=false")
_SETTINGS = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


def free_ports(number: int) -> list[int]:
    """Returns TCP ports of loopback that were free a moment ago."""
    with ExitStack() as probes:
        sockets = [probes.enter_context(socket.socket()) for _ in range(number)]
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in sockets]


def environment_of_ray(home: Path, **settings: str) -> dict[str, str]:
    """Returns our environment with these settings of Ray's and none of the user's."""
    own = {name: value for name, value in os.environ.items() if name not in _SETTINGS}
    return {**own, **LOOPBACK, "HOME": str(home), **settings}


@contextmanager
def ray_head(environment: Mapping[str, str]) -> Iterator[str]:
    """Yields a head's address, host:port; stops it in the end."""
    port, client_port, agent_port = free_ports(3)
    # Short, for Ray's sockets.
    with tempfile.TemporaryDirectory(prefix="rh-", ignore_cleanup_errors=True) as folder:
        ports = (
            f"--port={port}",
            f"--ray-client-server-port={client_port}",
            f"--dashboard-agent-listen-port={agent_port}",
        )
        start = [RAY, "start", "--head", "--block", *_OPTIONS, *ports, f"--temp-dir={folder}"]
        log = Path(folder, "head.log")
        with log.open("w") as file:
            head = subprocess.Popen(
                start, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        try:
            wait_for(lambda: "Ray runtime started" in log.read_text() or head.poll() is not None)
            assert head.poll() is None, log.read_text()
            yield f"127.0.0.1:{port}"
        finally:
            head.terminate()
            try:
                head.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(head.pid, signal.SIGKILL)
                head.wait()
