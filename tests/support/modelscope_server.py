"""A server that speaks the part of ModelScope's API by which a model's files are fetched."""

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
        self.cut_after = self.hub.cut_after
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
            self.answer(200, {"Code": 200, "Data": {"Files": listed}})
        elif parts.path == "/api/v1/models/someone/tiny/repo":
            (path,) = parse_qs(parts.query)["FilePath"]
            self._note(path)
            data = self.hub.files[path]
            start = int(self.headers.get("Range", "bytes=0-")[len("bytes=") : -1])
            part = {"Content_Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
            self.answer(206 if start else 200, data[start:], **part)
        else:  # another model, or the question whether this is a machine of Alibaba's cloud
            text = "not found, " * 20
            self.answer(404, {"Code": 10010205001, "Message": text})

    def _note(self, path: str) -> None:
        self.hub.asked.append((path, dict(self.headers)))


@contextmanager
def modelscope_server(files: dict[str, bytes]) -> Iterator[ModelScope]:
    """Serves these files as `someone/tiny` until the block ends."""
    hub = ModelScope(files)
    with serving(type("_Handler", (_Handler,), {"hub": hub})) as hub.url:
        yield hub
