from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_core.storage.object_store import ObjectStore
from tests.support import s3


@pytest.fixture
def port(s3_server: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of an empty server that the environment leads to."""
    s3.clear(s3_server)
    for name, value in s3.environment(s3_server).items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def store(port: int) -> ObjectStore:
    return ObjectStore(s3.URL)


@pytest.fixture
def proxy(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.FaultyProxy]:
    """The same server behind a proxy that does what its `fault` says."""
    with s3.FaultyProxy(port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        yield proxy


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """Two spools, as of two machines."""
    return tmp_path / "here", tmp_path / "there"
