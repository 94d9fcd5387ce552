"""A real S3 server of a test's own, on loopback, and a proxy before it that can be at fault."""

from __future__ import annotations

import os
import re
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx

from tests.support.http_server import reset
from tests.support.ray_head import free_ports
from tests.support.waiting import wait_for

BUCKET = "bucket"
URL = f"s3://{BUCKET}/runs-of-a-test"
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing-key-id",
    "AWS_SECRET_ACCESS_KEY": "testing-secret-key",
    "AWS_REGION": "us-east-1",
}
Fault = Literal["none", "slow", "reset", "503", "gone", "lost part"]
_HEAD_END = b"\r\n\r\n"


@contextmanager
def s3_server(log: Path) -> Iterator[int]:
    """Yields the port of a moto server with an empty bucket."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        wait_for(lambda: _answers(port), process=server)
        httpx.put(f"http://127.0.0.1:{port}/{BUCKET}").raise_for_status()
        yield port
    finally:
        server.terminate()
        server.wait(60)


def environment(port: int) -> dict[str, str]:
    """Returns what leads a store's client to a server on loopback."""
    return KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


@dataclass
class FaultyProxy:
    """Passes connections on to a server, or does what its `fault` says; counts what it did."""

    target: int
    fault: Fault = "none"
    port: int = 0
    harmed: dict[str, int] = field(default_factory=dict)
    """How many requests each fault met."""

    def __enter__(self) -> FaultyProxy:
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):
                    proxy.handle(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def handle(self, client: socket.socket) -> None:
        """One request per connection: both sides are told to close it after the answer."""
        request = _read_request(client)
        if request is None:
            return
        fault = self.fault
        if fault == "lost part" and b"uploadId=" not in request.partition(b"\r\n")[0]:
            fault = "none"
        if fault != "none":
            self.harmed[fault] = self.harmed.get(fault, 0) + 1
        if fault in ("gone", "reset"):
            reset(client)
        elif fault == "503":
            client.sendall(
                b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )
        elif fault == "lost part":
            client.sendall(
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 64\r\nConnection: close\r\n\r\n"
                b"<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>\n"
            )
        else:
            if fault == "slow":
                time.sleep(0.5)
            with closing(socket.create_connection(("127.0.0.1", self.target))) as server:
                server.sendall(request)
                while data := server.recv(2**16):
                    client.sendall(data)


def _read_request(client: socket.socket) -> bytes | None:
    """Returns a whole request that asks for the connection to be closed."""
    data = b""
    while _HEAD_END not in data:
        more = client.recv(2**16)
        if not more:
            return None
        data += more
    head, _, body = data.partition(_HEAD_END)
    if re.search(rb"(?im)^expect: *100-continue", head):
        client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
    length = re.search(rb"(?im)^content-length: *(\d+)", head)
    while len(body) < int(length[1] if length else 0):
        more = client.recv(2**16)
        if not more:
            return None
        body += more
    head = re.sub(rb"(?im)^(connection|expect):.*\r\n", b"", head + b"\r\n").removesuffix(b"\r\n")
    return head + b"\r\nConnection: close" + _HEAD_END + body


def _answers(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/", timeout=5)
    except httpx.HTTPError:
        return False
    return True


def clear(port: int) -> None:
    """Empties the server: no object, one bucket."""
    httpx.post(f"http://127.0.0.1:{port}/moto-api/reset").raise_for_status()
    httpx.put(f"http://127.0.0.1:{port}/{BUCKET}").raise_for_status()


def without_keys() -> dict[str, str]:
    """Returns this process's environment without what leads to a store."""
    return {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
