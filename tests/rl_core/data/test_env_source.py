"""GSM8K from the hub's local cache and from a hub on this machine: the hub's own client reads both.

Nothing online.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.config.run import DataConfig
from rl_core.data.dataset import is_ready, read_problems, write_dataset
from rl_core.data.env_source import find_source, read_rows
from rl_core.envs.gsm8k import Gsm8kConfig

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = {
    "train": [("How many are 9 * 2?", "Twice nine.\n#### 18"), ("Rent?", "A lot.\n#### 1,800")],
    "test": [("Half of one?", "Cut it.\n#### 0.5")],
}

FillCache = Callable[..., Path]


@pytest.fixture
def fill_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FillCache:
    """Returns a function that writes `openai/gsm8k` into an empty cache of the hub's client."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def fill(config: str, splits: tuple[str, ...]) -> Path:
        repository = tmp_path / "hub" / "datasets--openai--gsm8k"
        snapshot = repository / "snapshots" / COMMIT
        for folder in (repository / "refs", repository / "blobs", snapshot / config):
            folder.mkdir(parents=True, exist_ok=True)
        (repository / "refs" / "main").write_text(COMMIT)
        (repository / "blobs" / "readme").write_text("# GSM8K\n")
        (snapshot / "README.md").symlink_to("../../blobs/readme")
        for split in splits:
            records = [{"question": q, "answer": a} for q, a in ROWS[split]]
            blob = repository / "blobs" / f"{config}-{split}"
            pq.write_table(pa.Table.from_pylist(records), blob)
            name = snapshot / config / f"{split}-00000-of-00001.parquet"
            name.symlink_to(f"../../../blobs/{blob.name}")
        return snapshot

    return fill


def test_the_default_source_is_read_from_the_cache(fill_cache: FillCache, tmp_path: Path) -> None:
    snapshot = fill_cache("main", ("train", "test"))
    files = find_source("openai/gsm8k")
    assert files == {
        split: [snapshot / "main" / f"{split}-00000-of-00001.parquet"] for split in ROWS
    }
    assert {split: read_rows(files[split]) for split in files} == ROWS

    write_dataset(Gsm8kConfig(), DataConfig(), tmp_path / "out")
    problems = read_problems(tmp_path / "out" / "train.parquet")
    assert [problem.ground_truth for problem in problems] == ["18", "1800"]
    assert is_ready(Gsm8kConfig(), DataConfig(), tmp_path / "out")


@pytest.mark.parametrize(
    ("config", "splits"),
    [("main", ("train",)), ("socratic", ("train", "test"))],
    ids=["one split", "another config"],
)
def test_a_cache_that_holds_something_else_is_not_enough(
    fill_cache: FillCache, config: str, splits: tuple[str, ...]
) -> None:
    fill_cache(config, splits)
    with pytest.raises(ValueError, match="has not all files of the split"):  # offline
        find_source("openai/gsm8k")


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of a hub as one data set needs: its revision, its file list and its files."""

    files: dict[str, bytes]
    asked: list[str]

    def do_GET(self) -> None:
        """Answers; a `HEAD` gets the same without the body."""
        self.asked.append(self.path)
        api, tree = "/api/datasets/openai/gsm8k", f"/tree/{COMMIT}"
        if self.path.startswith(f"{api}{tree}"):
            entries = [
                {"type": "file", "path": name, "size": len(body), "oid": COMMIT}
                for name, body in self.files.items()
            ]
            self.answer(json.dumps(entries).encode())
        elif self.path.startswith(api):
            names = [{"rfilename": name} for name in self.files]
            self.answer(
                json.dumps({"id": "openai/gsm8k", "sha": COMMIT, "siblings": names}).encode()
            )
        else:
            name = self.path.removeprefix(f"/datasets/openai/gsm8k/resolve/{COMMIT}/")
            self.answer(self.files[name])

    do_HEAD = do_GET  # noqa: N815  # the name that http.server looks for

    def answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub with both configs of the data set, and what it was asked for."""
    files = {"README.md": b"# GSM8K"}
    for config in ("main", "socratic"):
        for split, pairs in ROWS.items():
            table = pa.Table.from_pylist([{"question": q, "answer": a} for q, a in pairs])
            pq.write_table(table, tmp_path / "file")
            name = f"{config}/{split}-00000-of-00001.parquet"
            files[name] = (tmp_path / "file").read_bytes()
    handler = type("Handler", (Hub,), {"files": files, "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler.asked
        server.shutdown()
        thread.join()


def test_the_default_source_is_fetched_once_and_main_alone(
    hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, asked = hub
    code = (
        "import json; from rl_core.data.env_source import *\n"
        "files = find_source('openai/gsm8k')\n"
        "print(json.dumps({split: read_rows(files[split]) for split in files}))"
    )
    environment = os.environ | {
        "HF_ENDPOINT": address,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
    }

    def fetch() -> None:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        )
        rows = json.loads(done.stdout)
        assert {split: [tuple(pair) for pair in rows[split]] for split in rows} == ROWS

    fetch()
    fetched = {path for path in asked if "/resolve/" in path}
    assert len(fetched) == 2
    assert all(f"/{COMMIT}/main/" in path for path in fetched)
    num_asked = len(asked)
    fetch()
    assert len(asked) == num_asked, "the cache was enough"
