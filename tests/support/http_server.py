"""A small HTTP server on loopback: the tests' hubs, webhooks and stand-ins are handlers for it."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Reads whole bodies and answers in one piece, silently."""

    protocol_version = "HTTP/1.1"
    cut_after: int | None = None
    """Bytes of a body after which the connection breaks."""

    def respond(self) -> None:
        """Answers a request of any kind: `self.command` says which."""
        raise NotImplementedError

    def sent(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, content: bytes | dict[str, Any] = b"", **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: self.cut_after])
        if self.cut_after is not None and len(data) > self.cut_after:
            self.close_connection = True

    def log_message(self, *_: object) -> None: ...

    def _do(self) -> None:
        self.respond()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _do  # noqa: N815  # http.server's names


@contextmanager
def serving(handler: type[Handler]) -> Iterator[str]:
    """Yields the URL of a server that is up within the block."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@contextmanager
def answering(status: int, beside_health: int | None = None) -> Iterator[str]:
    """A server that answers everything with a status; yields its URL as Prefect's API."""

    class Answering(Handler):
        def respond(self) -> None:
            is_probe = beside_health is None or self.path.endswith("/health")
            self.answer(status if is_probe else beside_health)

    with serving(Answering) as url:
        yield f"{url}/api"


def reset(connection: socket.socket) -> None:
    """Closes a connection so that the peer gets a reset instead of an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
