"""A real S3 server of a test's own, on loopback, and a proxy before it that can be at fault."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import httpx

from tests.support.http_server import Handler, reset, serving
from tests.support.ray_head import free_ports
from tests.support.waiting import wait_for

BUCKET = "bucket"
URL = f"s3://{BUCKET}/runs-of-a-test"
KEYS = {
    "AWS_ACCESS_KEY_ID": "testing-key-id",
    "AWS_SECRET_ACCESS_KEY": "testing-secret-key",
    "AWS_REGION": "us-east-1",
}
_PASSED = ("content-range", "content-type", "etag", "last-modified")
Fault = Literal["none", "slow", "reset", "503", "gone", "lost part"]


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
    """A proxy before a server: its `fault` may be set at any time."""

    port: int = 0
    fault: Fault = "none"
    harmed: dict[str, int] = field(default_factory=dict)
    """How many requests each fault met."""


@contextmanager
def faulty_proxy(target: int) -> Iterator[FaultyProxy]:
    """Yields a proxy that passes requests on to a port, unless something is at fault."""
    proxy = FaultyProxy()

    class Passing(Handler):
        def respond(self) -> None:
            body, fault = self.sent(), proxy.fault
            if fault == "lost part" and "uploadId=" not in self.path:
                fault = "none"
            if fault != "none":
                proxy.harmed[fault] = proxy.harmed.get(fault, 0) + 1
            if fault in ("gone", "reset"):
                self.close_connection = True
                reset(self.connection)
            elif fault == "503":
                self.answer(503)
            elif fault == "lost part":
                self.answer(404, b"<Error><Code>NoSuchUpload</Code><Message>gone</Message></Error>")
            else:
                time.sleep(0.5 if fault == "slow" else 0)
                self._pass_on(body)

        def _pass_on(self, body: bytes) -> None:
            with closing(HTTPConnection("127.0.0.1", target)) as server:
                server.request(self.command, self.path, body, dict(self.headers))
                answer = server.getresponse()
                sent = {name.lower(): value for name, value in answer.getheaders()}
                headers = {k.replace("-", "_"): sent[k] for k in _PASSED if k in sent}
                self.answer(answer.status, answer.read(), **headers)

    with serving(Passing) as url:
        proxy.port = urlsplit(url).port or 0
        yield proxy


def _answers(port: int) -> bool:
    with suppress(httpx.HTTPError):
        return bool(httpx.get(f"http://127.0.0.1:{port}/", timeout=5).status_code)
    return False


def clear(port: int) -> None:
    """Empties the server: no object, one bucket."""
    httpx.post(f"http://127.0.0.1:{port}/moto-api/reset").raise_for_status()
    httpx.put(f"http://127.0.0.1:{port}/{BUCKET}").raise_for_status()
