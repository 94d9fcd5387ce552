"""Machines on this machine: each with an address, a disk, a host name and processes of its own.

The system and the project are there as if installed on each, and what is to be written goes to its
own disk. Linux namespaces on a bridge, which need root.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.harness import ROOT
from tests.support.ray_head import RAY, environment_of_ray
from tests.support.waiting import wait_for

_BOOT = """
mount --make-rprivate /
hostname "$1"
mount --bind "$2" "$3"
mount --bind "$2/ray" /tmp/ray
mount -t tmpfs -o size=2g none /dev/shm
exec sleep infinity
"""
_RAY_PORT = 6379


class Machine:
    """One machine, wired to a bridge; made by `ray_machines`.

    The disks of all machines lie in `folder`, seen from outside, and each has its own there.
    """

    def __init__(self, number: int, bridge: str, folder: Path) -> None:
        self.name = f"machine{number}"
        self.address = f"10.77.0.{10 + number}"
        self.disk = folder / "disk"
        """Where it has its disk."""
        self.outside = folder / "disks" / self.name
        """Where the test sees that."""
        self._bridge = bridge
        self._network, self._wire = f"{bridge}n{number}", f"{bridge}w{number}"
        self._log = folder / f"{self.name}.log"
        self._started: list[subprocess.Popen[bytes]] = []

    def plug_in(self) -> None:
        """Wires it to the bridge."""
        for folder in (self.disk, self.outside / "ray", self.outside / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        _ip("netns", "add", self._network)
        inside = ("peer", "name", "eth0", "netns", self._network)
        _ip("link", "add", self._wire, "type", "veth", *inside)
        _ip("link", "set", self._wire, "master", self._bridge)
        _ip("link", "set", self._wire, "up")
        _ip("-n", self._network, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for name in ("eth0", "lo"):
            _ip("-n", self._network, "link", "set", name, "up")

    def unplug(self) -> None:
        """Removes its network."""
        for words in (("netns", "del", self._network), ("link", "del", self._wire)):
            subprocess.run(["ip", *words], check=False, capture_output=True)

    def boot(self) -> None:
        """Starts it, with the disk that it had."""
        own = [self.name, str(self.outside), str(self.disk)]
        isolated = ["unshare", "-m", "-u", "-p", "-f", "--kill-child", "--mount-proc"]
        words = ["ip", "netns", "exec", self._network, *isolated, "sh", "-ec", _BOOT, "sh", *own]
        self._machine = subprocess.Popen(words, start_new_session=True)
        wait_for(lambda: "sleep" in self._first_process(), process=self._machine)
        (first,) = psutil.Process(self._machine.pid).children()
        self._pid = first.pid

    def _first_process(self) -> str:
        try:
            return "".join(p.name() for p in psutil.Process(self._machine.pid).children())
        except psutil.Error:
            return ""

    def kill(self) -> None:
        """Cuts its power: all its processes are gone at once."""
        self._machine.kill()
        self._machine.wait()
        for process in self._started:
            process.wait()
        self._started.clear()

    def set_link(self, *, up: bool) -> None:
        """Plugs its network cable in, or pulls it out."""
        _ip("link", "set", self._wire, "up" if up else "down")

    def start(
        self, words: Sequence[str], environment: Mapping[str, str], log: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Starts a program on it; what that prints goes to a file outside."""
        entered = ["nsenter", "-t", str(self._pid), "-n", "-m", "-u", "-p", "--", *words]
        with (log or self._log).open("a") as file:
            process = subprocess.Popen(
                entered, env=environment, cwd=ROOT, stdout=file, stderr=file, start_new_session=True
            )
        self._started.append(process)
        return process

    def start_ray(self, environment: Mapping[str, str], head: Machine, num_cpus: int) -> None:
        """Starts Ray on it and waits until it is up."""
        where = ("--head", f"--port={_RAY_PORT}", "--include-dashboard=false")
        if head is not self:
            where = (f"--address={head.address}:{_RAY_PORT}",)
        self._log.write_text("")
        node = self.start(
            [
                *(RAY, "start", "--block", "--disable-usage-stats", *where),
                f"--node-ip-address={self.address}",
                f"--num-cpus={num_cpus}",
                "--object-store-memory=150000000",
            ],
            environment,
        )
        wait_for(
            lambda: "Ray runtime started" in self._log.read_text() or node.poll() is not None,
            seen=self._log.read_text,
        )
        assert node.poll() is None, self._log.read_text()

    def processes(self, title: str) -> list[psutil.Process]:
        """Returns its processes whose command line holds some text."""
        network = Path(f"/proc/{self._pid}/ns/net").readlink()
        found = []
        for process in psutil.process_iter():
            try:
                is_here = Path(f"/proc/{process.pid}/ns/net").readlink() == network
                if is_here and title in " ".join(process.cmdline()):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found


@contextmanager
def ray_machines(
    folder: Path, num_cpus: Sequence[int]
) -> Iterator[tuple[list[Machine], dict[str, str]]]:
    """Yields machines with a Ray on them, its head on the first, and the environment of its users.

    Skips where namespaces are refused, but in CI, which must not lose the test.

    Args:
        folder: where nothing of them is left behind but their disks.
        num_cpus: of each machine, as Ray counts them.
    """
    bridge = f"ct{os.getpid()}"
    made = subprocess.run(
        ["ip", "link", "add", bridge, "type", "bridge"], capture_output=True, text=True, check=False
    )
    if made.returncode != 0:
        assert "MUST_MOUNT" not in os.environ, made.stderr
        pytest.skip(f"networks of their own are needed: {made.stderr.strip()}")
    Path("/tmp/ray").mkdir(exist_ok=True)
    with ExitStack() as made_up:
        made_up.callback(_ip, "link", "del", bridge)
        _ip("link", "set", bridge, "up")
        found = [Machine(i + 1, bridge, folder) for i in range(len(num_cpus))]
        for machine in found:
            made_up.callback(machine.unplug)
            machine.plug_in()
            machine.boot()
            made_up.callback(machine.kill)
        environment = environment_of_ray(
            found[0].disk / "home",
            PYTHONPATH=str(ROOT),
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN="t" * 40,
            RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="1",
            # As in a Ray that knows nothing of us: else each worker of its loads torch.
            RAY_ENABLE_ZERO_COPY_TORCH_TENSORS="0",
        )
        for machine, cpus in zip(found, num_cpus, strict=True):
            machine.start_ray(environment, found[0], cpus)
        yield found, environment


def ray_address(machines: Sequence[Machine]) -> str:
    return f"{machines[0].address}:{_RAY_PORT}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)
