"""Servers in wandb's place: one that works, and those that do not.

`FakeWandb` speaks as much of wandb's protocol as `wandb-core` needs to resume, stream and finish a
run, and keeps what it received as wandb does: lines of history at the client's offsets.
"""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any, cast

from tests.support.http_server import Handler, reset
from tests.support.ray_head import free_ports

API_KEY = "feedc0de" * 5


class FakeWandb(ThreadingHTTPServer):
    """A server in a thread; a context manager.

    Args:
        resets_after: requests that it answers before it resets every connection; None for ever.
        takes_tables: False fails where a table is announced.
    """

    daemon_threads = True

    def __init__(self, resets_after: int | None = None, *, takes_tables: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.resets_after = resets_after
        self.takes_tables = takes_tables
        self.lines: dict[str, dict[int, str]] = {}
        self.exit_codes: dict[str, int] = {}
        self.files: dict[str, bytes] = {}
        """Of all runs, by their paths below a run's folder."""
        self.paths: list[str] = []
        """Of all requests."""
        self.projects: set[str] = set()
        """Of all runs."""

    def __enter__(self) -> FakeWandb:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients may go away."""

    def rows(self, run: str) -> list[dict[str, Any]]:
        """Returns a run's history in the order of its lines."""
        lines = self.lines[run]
        return [json.loads(lines[at]) for at in sorted(lines)]

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Returns what a GraphQL operation is told."""
        name, entity = variables.get("name", ""), {"id": "e", "name": "me"}
        project = {"id": "m", "name": variables.get("project"), "entity": entity}
        if operation == "RunResumeStatus":
            bucket = self._resumed(name) if name in self.lines else None
            return {"model": project | {"bucket": bucket}}
        if operation == "UpsertBucket":
            inserted = name not in self.lines
            self.projects.add(variables["project"])
            lines = self.lines.setdefault(name, {})
            bucket = {"id": "b", "name": name, "displayName": name, "description": ""}
            bucket |= {"config": "{}", "sweepName": None, "project": project}
            bucket["historyLineCount"] = len(lines)
            return {"upsertBucket": {"bucket": bucket, "inserted": inserted}}
        if operation == "Viewer":
            return {"viewer": entity | {"entity": "me", "username": "me", "flags": "{}"}}
        if operation == "":  # of which type an artifact of this name is
            return {"project": {"artifact": None}} if self.takes_tables else {"project": "no"}
        if operation == "CreateArtifact":  # it is there already: its files need not be sent
            known = {"id": "a", "versionIndex": 0}
            artifact = {"id": "a", "state": "COMMITTED", "digest": variables["input"]["digest"]}
            artifact["artifactSequence"] = {"id": "s", "latestArtifact": known}
            return {"createArtifact": {"artifact": artifact}}
        if operation == "CreateRunFiles":
            files = [{"name": f, "uploadUrl": f"{self.url}/{f}"} for f in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {}

    def table(self, row: dict[str, Any]) -> list[list[Any]]:
        """Returns the cells of the table of samples in a row of history."""
        found: dict[str, Any] = json.loads(self.files[row["samples"]["path"]])
        assert found["columns"] == ["step", "prompt", "response", "answer", "verdict", "score"]
        return cast(list[list[Any]], found["data"])

    def _resumed(self, name: str) -> dict[str, Any]:
        lines = self.lines[name]
        bucket: dict[str, Any] = {"id": "b", "name": name, "displayName": name, "notes": ""}
        bucket |= {"summaryMetrics": "{}", "config": "{}", "tags": [], "eventsTail": "[]"}
        bucket |= {"logLineCount": 0, "eventsLineCount": 0, "historyLineCount": len(lines)}
        bucket["historyTail"] = json.dumps([lines[max(lines)]] if lines else [])
        bucket["wandbConfig"] = '{"t": 1}'
        return bucket

    def receive(self, run: str, files: dict[str, Any], exit_code: int | None) -> None:
        """Keeps what a run streams."""
        history = files.get("wandb-history.jsonl")
        if history is not None:
            lines = self.lines.setdefault(run, {})
            lines |= {history["offset"] + at: line for at, line in enumerate(history["content"])}
        if exit_code is not None:
            self.exit_codes[run] = exit_code


class _Handler(Handler):
    def respond(self) -> None:
        fake = cast(FakeWandb, self.server)
        fake.paths.append(self.path)
        body = self._body()
        if fake.resets_after is not None and len(fake.paths) > fake.resets_after:
            reset(self.connection)
            self.close_connection = True
            return
        found: dict[str, Any] = {}
        if self.path.startswith("/graphql"):
            asked = json.loads(body)
            variables = asked.get("variables") or {}
            found = {"data": fake.answer(asked["operationName"], variables)}
        elif self.command == "PUT":
            fake.files[self.path.removeprefix("/")] = body
        elif self.path.endswith("/file_stream"):
            sent = json.loads(body)
            fake.receive(self.path.split("/")[-2], sent.get("files", {}), sent.get("exitcode"))
        self.answer(200, found, Content_Type="application/json")

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.sent()
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body


@contextmanager
def closed_port() -> Iterator[str]:
    """Yields the address of a port where nobody listens."""
    yield f"http://127.0.0.1:{free_ports(1)[0]}"


@contextmanager
def black_hole() -> Iterator[str]:
    """Yields the address of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
