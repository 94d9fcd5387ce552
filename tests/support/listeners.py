"""A webhook's other end: a real server on a loopback port that takes, hangs, drips or resets."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.support.http_server import Handler, reset, serving

SECRET = "T0SECRET/B0SECRET/hunter2hunter2"  # a planted one


class Hook:
    """What a server was told, and where it listens."""

    def __init__(self, port: int) -> None:
        self.url = f"http://user:{SECRET[:8]}%40@127.0.0.1:{port}/services/{SECRET}?token={SECRET}"
        self.told: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.users: list[str] = []


@contextmanager
def hook(status: int = 200) -> Iterator[Hook]:
    """Runs a server that answers each POST with a status."""

    class Listener(Handler):
        def respond(self) -> None:
            made.told.append(json.loads(self.sent()))
            made.paths.append(self.path)
            made.users.append(self.headers["Authorization"])
            elsewhere = {"Location": "/elsewhere"} if 300 <= status < 400 else {}
            self.answer(status, **elsewhere)

    with serving(Listener) as url:
        made = Hook(urlsplit(url).port or 0)
        yield made


@contextmanager
def rude_hook(manners: str) -> Iterator[Hook]:
    """Runs a server that accepts and then `hangs`, `resets`, or `drips` a byte now and then."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with peer:
                if manners == "resets":
                    peer.recv(10)
                    reset(peer)
                    continue
                while manners == "drips" and not over.wait(0.2):
                    peer.sendall(b"x")
                over.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        try:
            yield Hook(listener.getsockname()[1])
        finally:
            over.set()
