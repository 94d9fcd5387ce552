from collections.abc import Callable
from typing import Any

# Its logging keeps the stderr that it finds on import: the session's here, not that of one test,
# which closes it, so that every later line of a log would end as "Logging error" in others' stderr.
import prefect.main  # noqa: F401
import pytest


@pytest.fixture
def fails(cli: Callable[..., Any]) -> Callable[..., str]:
    """`fails("run", "lr=abc")` must end with exit code 2 and one or two lines, which it returns."""

    def run(*words: str, **options: Any) -> str:
        printed = cli(*words, code=2, **options)
        assert printed.out == ""
        assert 1 <= len(printed.err.splitlines()) <= 2
        return str(printed.err)

    return run
