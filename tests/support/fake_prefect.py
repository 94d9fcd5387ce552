"""A stranger's program that poses as a Prefect server; it needs the standard library only.

`python fake_prefect.py PORT NOTES POISON USER` becomes a user and listens at a port as soon as that
is free; PORT 0 means the one that a command line of the test's processes says after `--port`, as
all users can read it. It notes what it is sent, a JSON line each, and says of each run that it is
done, with a result in a storage block
at POISON.
"""

import json
import os
import re
import socket
import sys
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BLOCK = "00000000-0000-4000-8000-00000000b10c"
ID = "00000000-0000-4000-8000-000000000001"
NOW = "2026-01-01T00:00:00Z"
KEY = "poison"
_POLL_S = 0.002


def record(serializer: dict[str, str]) -> dict[str, object]:
    return {"storage_key": KEY, "serializer": serializer, "storage_block_id": BLOCK}


def state(kind: str) -> dict[str, object]:
    data = record({"type": "pickle"})
    return {"id": ID, "type": kind, "name": kind.title(), "timestamp": NOW, "data": data}


def answer_to(path: str, poison: str) -> Any:
    """Returns what a server would answer, as far as a client needs it."""
    thing = {"id": ID, "created": NOW, "updated": NOW}
    block_type = {**thing, "name": "Local File System", "slug": "local-file-system"}
    schema = {
        **thing,
        "checksum": "sha256:0",
        "fields": {"block_schema_references": {}},
        "block_type_id": ID,
        "block_type": block_type,
        "capabilities": ["get-directory", "put-directory", "read-path", "write-path"],
    }
    document = {
        **thing,
        "id": BLOCK,
        "name": "stranger",
        "data": {"basepath": poison},
        "block_schema_id": ID,
        "block_schema": schema,
        "block_type_id": ID,
        "block_type": block_type,
        "block_type_name": "Local File System",
        "block_document_references": {},
    }
    answers: list[tuple[str, Any]] = [
        ("/health", True),
        ("/admin/version", "3.9.1"),
        ("/set_state", {"status": "REJECT", "state": state("COMPLETED"), "details": {}}),
        ("/block_documents/", document),
        ("/default-result-storage", {"default_result_storage_block_id": BLOCK}),
        ("/flows/", {**thing, "name": "flow"}),
        ("/flow_runs/", {**thing, "name": "run", "flow_id": ID, "state": None}),
        ("/filter", []),
        ("", {**thing, "name": "x"}),
    ]
    return next(answer for part, answer in answers if part in path)


class Stranger(BaseHTTPRequestHandler):
    """Answers everything."""

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode(errors="replace")
        with Path(sys.argv[2]).open("a") as notes:
            sent = {"path": self.path, "login": self.headers.get("Authorization"), "body": body}
            notes.write(json.dumps(sent) + "\n")
        code = 422 if "csrf-token" in self.path else 200
        answer = {"detail": "CSRF protection is disabled."}
        text = json.dumps(answer if code == 422 else answer_to(self.path, sys.argv[3])).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_POST = do_PATCH = do_GET  # noqa: N815  # http.server looks for these names

    def log_message(self, format: str, *args: Any) -> None: ...


def ancestors(pid: int) -> set[int]:
    found: set[int] = set()
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.add(pid)
    return found


def ports_in_command_lines() -> set[int]:
    ports = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if os.getppid() not in ancestors(int(file.parent.name)):
                continue  # of another test on this machine
            for found in re.findall(rb"--port\0(\d+)\0", file.read_bytes()):
                ports.add(int(found))
    return ports


def take(port: int) -> socket.socket:
    """Returns a socket that listens at a port, as soon as nobody else does."""
    while True:
        for each in [port] if port else ports_in_command_lines():
            with suppress(OSError):
                return socket.create_server(("127.0.0.1", each))
        time.sleep(_POLL_S)


def become(user: int) -> None:
    """Gives all rights up; that account may not have a Python that it can start."""
    if user != os.geteuid():
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def main() -> None:
    become(int(sys.argv[4]))
    with Path(sys.argv[2]).open("a") as notes:
        notes.write('{"path": "begins"}\n')
    taken = take(int(sys.argv[1]))
    server = ThreadingHTTPServer(taken.getsockname(), Stranger, bind_and_activate=False)
    server.socket.close()
    server.socket = taken
    server.serve_forever()


if __name__ == "__main__":
    main()
