"""A temporary Prefect server that flows of this process talk to, also beside another one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_prefect_server(results: Path) -> Iterator[None]:
    """Yields with a server of its own, and with results in `results`.

    Prefect keeps one sender of events per process, whatever the server: without an end of the one
    that is there, what a flow's tasks came to goes to the server of the tests before.
    """
    from prefect.events.worker import EventsWorker
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    EventsWorker.drain_all(timeout=30, at_exit=False)
    with (
        temporary_settings({PREFECT_LOCAL_STORAGE_PATH: results}),
        prefect_test_harness(server_startup_timeout=120),
    ):
        yield
    EventsWorker.drain_all(timeout=30, at_exit=False)
