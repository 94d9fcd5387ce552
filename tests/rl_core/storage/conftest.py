from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_core.storage.object_store import ObjectStore
from tests.support import s3


@pytest.fixture
def store(s3_port: int) -> ObjectStore:
    return ObjectStore(s3.URL)


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[s3.FaultyProxy]:
    """The same server behind a proxy that does what its `fault` says."""
    with s3.faulty_proxy(s3_port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        yield proxy


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """Two spools, as of two machines."""
    return tmp_path / "here", tmp_path / "there"
