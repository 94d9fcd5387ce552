"""A server that speaks the part of the Hugging Face hub's API by which a folder is uploaded."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Hub:
    """What the server was given: it takes no model of `another`."""

    url: str = ""
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """By path in the repository that was created."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if b'"another"' in body or "/another/" in self.path:
            self._answer(403, {"error": "no right to write"})
        elif self.path == "/api/repos/create":
            self.hub.created.append(json.loads(body))
            self._answer(200, {"url": f"{self.hub.url}/someone/tiny"})
        elif self.path == "/api/models/someone/tiny/preupload/main":
            asked = json.loads(body)["files"]
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in asked
            ]
            self._answer(200, {"files": modes})
        elif self.path == "/api/models/someone/tiny/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.hub.files[line["value"]["path"]] = content
            url = f"{self.hub.url}/someone/tiny/commit/{'0' * 40}"
            self._answer(200, {"commitUrl": url, "commitOid": "0" * 40})
        else:
            self._answer(200, {})  # is the card well-formed? it is

    def do_GET(self) -> None:
        self._answer(200, {"id": "someone/tiny", "sha": "0" * 40, "siblings": []})

    def _answer(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Yields a hub on loopback that is up within the block."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
