from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Its logging keeps the stderr that it finds on import: the session's here, not that of one test,
# which closes it, so that every later line of a log would end as "Logging error" in others' stderr.
import prefect.main  # noqa: F401
import pytest

from tests.support.prefect_server import temporary_prefect_server


@pytest.fixture(scope="session")
def prefect_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One temporary Prefect server for all flow tests, with results in a folder of its own."""
    results = tmp_path_factory.mktemp("results")
    with temporary_prefect_server(results):
        yield results


@pytest.fixture
def fails(cli: Callable[..., Any]) -> Callable[..., str]:
    """`fails("run", "lr=abc")` must end with exit code 2 and one or two lines, which it returns."""

    def run(*words: str, **options: Any) -> str:
        printed = cli(*words, code=2, **options)
        assert printed.out == ""
        assert 1 <= len(printed.err.splitlines()) <= 2
        return str(printed.err)

    return run
