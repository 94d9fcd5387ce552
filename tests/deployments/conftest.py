from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest

from tests.support.harness import Prefect

_SETTINGS = {
    "PREFECT_SERVER_SERVICES_LATE_RUNS_AFTER_SECONDS": "3",
    "PREFECT_WORKER_QUERY_SECONDS": "2",
}


@pytest.fixture(scope="session")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefect]:
    """A server with all deployments, the nightly one due every minute and the others not."""
    # Short, for Ray's sockets; what a killed run leaves in its temporary folder goes with it.
    with tempfile.TemporaryDirectory(prefix="pf-", ignore_cleanup_errors=True) as temp_dir:
        settings = {**_SETTINGS, "TMPDIR": temp_dir}
        prefect = Prefect(tmp_path_factory.mktemp("deployed"), settings)
        prefect.start_server()
        try:
            noon = 'cron: "0 12 * * *"'
            prefect.deploy({noon: 'cron: "0 12 29 2 *"'}, at="* * * * *")
            yield prefect
        finally:
            prefect.stop_server()
