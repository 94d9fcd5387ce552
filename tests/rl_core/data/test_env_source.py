"""GSM8K from the hub's local cache and from a hub on this machine: the hub's own client reads both.

Nothing online.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_core.config.run import DataConfig
from rl_core.data.dataset import is_ready, read_problems, write_dataset
from rl_core.data.readers import find_source
from rl_core.envs.gsm8k import Gsm8kConfig
from tests.support.http_server import Handler, serving
from tests.support.own_data import REVISION, put_in_cache, write_rows

NAME = "openai/gsm8k"
ROWS = {
    "train": [("How many are 9 * 2?", "Twice nine.\n#### 18"), ("Rent?", "A lot.\n#### 1,800")],
    "test": [("Half of one?", "Cut it.\n#### 0.5")],
}


def files_of(config: str, splits: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """The records of each file, by its path in the repository."""
    return {
        f"{config}/{split}-00000-of-00001.parquet": [
            {"question": question, "answer": answer} for question, answer in ROWS[split]
        ]
        for split in splits
    }


def test_the_default_source_is_read_from_the_cache(hub_cache: Path, tmp_path: Path) -> None:
    snapshot = put_in_cache(hub_cache, NAME, files_of("main", ("train", "test")))
    files = find_source(NAME)
    assert files == {
        split: [snapshot / "main" / f"{split}-00000-of-00001.parquet"] for split in ROWS
    }
    write_dataset(Gsm8kConfig(), DataConfig(), tmp_path / "out")
    problems = read_problems(tmp_path / "out" / "train.parquet")
    assert [problem.ground_truth for problem in problems] == ["18", "1800"]
    assert all(
        q in p.messages[0]["content"] for p, (q, _) in zip(problems, ROWS["train"], strict=True)
    )
    assert is_ready(Gsm8kConfig(), DataConfig(), tmp_path / "out")


@pytest.mark.parametrize(
    ("config", "splits"),
    [("main", ("train",)), ("socratic", ("train", "test"))],
    ids=["one split", "another config"],
)
def test_a_cache_that_holds_something_else_is_not_enough(
    hub_cache: Path, config: str, splits: tuple[str, ...]
) -> None:
    put_in_cache(hub_cache, NAME, files_of(config, splits))
    with pytest.raises(ValueError, match="has not all files of the split"):  # offline
        find_source(NAME)


class Hub(Handler):
    """As much of a hub as one data set needs: its revision, its file list and its files."""

    files: dict[str, bytes]
    asked: list[str]

    def respond(self) -> None:
        self.asked.append(self.path)
        api = f"/api/datasets/{NAME}"
        if self.path.startswith(f"{api}/tree/{REVISION}"):
            entries = [
                {"type": "file", "path": name, "size": len(body), "oid": REVISION}
                for name, body in self.files.items()
            ]
            body = json.dumps(entries).encode()
        elif self.path.startswith(api):
            names = [{"rfilename": name} for name in self.files]
            body = json.dumps({"id": NAME, "sha": REVISION, "siblings": names}).encode()
        else:
            body = self.files[self.path.removeprefix(f"/datasets/{NAME}/resolve/{REVISION}/")]
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        self.answer(200, body, Content_Type="application/json", ETag=etag, X_Repo_Commit=REVISION)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub with both configs of the data set, and what it was asked for."""
    files = {"README.md": b"# GSM8K"}
    for config in ("main", "socratic"):
        for name, records in files_of(config, ("train", "test")).items():
            files[name] = write_rows(tmp_path / "made" / name, records).read_bytes()
    handler = type("Hub", (Hub,), {"files": files, "asked": []})
    with serving(handler) as address:
        yield address, handler.asked


def test_the_default_source_is_fetched_once_and_main_alone(
    hub: tuple[str, list[str]], tmp_path: Path
) -> None:
    address, asked = hub
    code = (
        "import json; from rl_core.data.readers import *\n"
        "files, names = find_source('openai/gsm8k'), ('question', 'answer')\n"
        "rows = {s: [r for _, r in read_records(files[s][0], names)] for s in files}\n"
        "print(json.dumps({s: [[r[name] for name in names] for r in rows[s]] for s in rows}))"
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
    assert all(f"/{REVISION}/main/" in path for path in fetched)
    num_asked = len(asked)
    fetch()
    assert len(asked) == num_asked, "the cache was enough"
