"""A night's slot is not worth the night: a run goes on where Prefect forgets that it holds one.

A run of a deployment with a concurrency limit renews the lease of its slot every few minutes. Where
that fails (the server was away, or was started again and forgot its leases, which it keeps in
memory) Prefect raises CancelledError in the middle of the flow, wherever it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import wraps
from typing import Any, Final

from prefect import flow_engine

_MAINTAIN: Final = "maintain_concurrency_lease"


def outlive_lost_leases() -> None:
    """Has flow runs of this process warn of a lost lease and go on; there is no setting for it.

    The next run may then start beside this one: a worker's `--limit 1` still counts both.
    """
    maintain = getattr(flow_engine, _MAINTAIN)

    @wraps(maintain)
    def maintain_and_outlive(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        kwargs["raise_on_lease_renewal_failure"] = False
        lease: AbstractContextManager[None] = maintain(*args, **kwargs)
        return lease

    setattr(flow_engine, _MAINTAIN, maintain_and_outlive)
