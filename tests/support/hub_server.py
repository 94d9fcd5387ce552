"""A server that speaks the part of the Hugging Face hub's API by which a folder is uploaded."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_server import Handler, serving


@dataclass
class Hub:
    """What the server was given: it takes no model of `another`."""

    url: str = ""
    created: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """By path in the repository that was created."""


class _Handler(Handler):
    hub: Hub

    def respond(self) -> None:
        body = self.sent()
        if self.command == "GET":
            self.answer(200, {"id": "someone/tiny", "sha": "0" * 40, "siblings": []})
        elif b'"another"' in body or "/another/" in self.path:
            self.answer(403, {"error": "no right to write"})
        elif self.path == "/api/repos/create":
            self.hub.created.append(json.loads(body))
            self.answer(200, {"url": f"{self.hub.url}/someone/tiny"})
        elif self.path == "/api/models/someone/tiny/preupload/main":
            plain = {"uploadMode": "regular", "shouldIgnore": False}
            files = [plain | {"path": file["path"]} for file in json.loads(body)["files"]]
            self.answer(200, {"files": files})
        elif self.path == "/api/models/someone/tiny/commit/main":
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    content = base64.b64decode(line["value"]["content"])
                    self.hub.files[line["value"]["path"]] = content
            url = f"{self.hub.url}/someone/tiny/commit/{'0' * 40}"
            self.answer(200, {"commitUrl": url, "commitOid": "0" * 40})
        else:
            self.answer(200, {})  # is the card well-formed? it is


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """Yields a hub on loopback that is up within the block."""
    hub = Hub()
    with serving(type("_Handler", (_Handler,), {"hub": hub})) as hub.url:
        yield hub
