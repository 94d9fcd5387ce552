import logging
import uuid

import pytest
from prefect import flow_engine
from prefect._internal.concurrency.cancellation import CancelledError
from prefect.concurrency import _leases

from flows.runs.state import outlive_lost_leases
from tests.support.waiting import wait_for

MAINTAIN = "maintain_concurrency_lease"


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
def test_a_lease_that_the_server_has_forgotten_does_not_end_the_flow(monkeypatch, caplog):
    monkeypatch.setattr(_leases, "_RENEWAL_MAX_ATTEMPTS", 1)
    monkeypatch.setattr(flow_engine, MAINTAIN, getattr(_leases, MAINTAIN))

    def work() -> bool:
        """Works until it is told of the lost lease."""
        lease = getattr(flow_engine, MAINTAIN)(
            uuid.uuid4(), 300, raise_on_lease_renewal_failure=True
        )
        words = "slots are no longer reserved. Execution will"
        with lease:
            wait_for(lambda: words in caplog.text, poll_s=0.01)
        return True

    with caplog.at_level(logging.WARNING), pytest.raises(CancelledError):
        work()
    outlive_lost_leases()
    with caplog.at_level(logging.WARNING):
        assert work()
