"""A server that speaks the part of ModelScope's API by which a model's files are fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import Handler, serving


@dataclass
class ModelScope:
    """What the server has, what it was asked for, and how it misbehaves."""

    files: dict[str, bytes]
    """By path in the one repository there is, `someone/tiny`."""
    url: str = ""
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Each request: the file's path (`/` for the list of files) and the headers."""
    cut_after: int | None = None
    """Bytes of a body after which the connection breaks."""

    def fetched(self) -> list[str]:
        return sorted(path for path, _ in self.asked if path != "/")


class _Handler(Handler):
    hub: ModelScope

    def respond(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/api/v1/models/someone/tiny/repo/files":
            self._note("/")
            listed = [
                {
                    "Path": path,
                    "Type": "blob",
                    "Size": len(data),
                    "Sha256": sha256(data).hexdigest(),
                }
                for path, data in self.hub.files.items()
            ]
            self._answer(200, json.dumps({"Code": 200, "Data": {"Files": listed}}).encode())
        elif parts.path == "/api/v1/models/someone/tiny/repo":
            (path,) = parse_qs(parts.query)["FilePath"]
            self._note(path)
            self._send_file(self.hub.files[path])
        else:  # another model, or the question whether this is a machine of Alibaba's cloud
            text = "not found, " * 20
            self._answer(404, json.dumps({"Code": 10010205001, "Message": text}).encode())

    def _note(self, path: str) -> None:
        self.hub.asked.append((path, dict(self.headers)))

    def _send_file(self, data: bytes) -> None:
        start = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        self._answer(206 if start else 200, data[start:], headers)

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut = self.hub.cut_after
        self.wfile.write(body if cut is None else body[:cut])
        self.close_connection = cut is not None and len(body) > cut


@contextmanager
def modelscope_server(files: dict[str, bytes]) -> Iterator[ModelScope]:
    """Serves these files as `someone/tiny` until the block ends."""
    hub = ModelScope(files)
    with serving(type("_Handler", (_Handler,), {"hub": hub})) as hub.url:
        yield hub
