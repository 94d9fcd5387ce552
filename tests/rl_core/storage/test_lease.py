import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rl_core.storage.lease import Lease, LeaseHeldError, is_written_elsewhere
from rl_core.storage.object_store import ObjectStore
from tests.support import s3
from tests.support.waiting import wait_for

QUICK = {"beat_s": 0.2, "patience_s": 20.0}
NEVER = {"beat_s": 1000.0, "patience_s": 3.0}
"""Of a holder that is dead, as far as others can see."""


def test_a_run_that_another_machine_writes_is_refused(store):
    with (
        Lease(store, "r", "here", **QUICK),
        pytest.raises(LeaseHeldError, match=r"another machine, .*, is at work on run r: wait"),
        Lease(store, "r", "there", **QUICK),
    ):
        pass
    with Lease(store, "other", "there", **QUICK):
        pass  # another run is free


def test_a_lease_that_was_given_back_is_free_at_once(store):
    with Lease(store, "r", "here", **QUICK) as first:
        assert not first.was_own
    assert not is_written_elsewhere(store, "r", "here")
    with Lease(store, "r", "here", **QUICK) as again:
        assert again.was_own
    with Lease(store, "r", "there", patience_s=1e9) as other:
        assert not other.was_own
    assert is_written_elsewhere(store, "r", "here")


@pytest.mark.slow
def test_the_lease_of_a_dead_machine_is_taken_and_its_return_is_noticed(store):
    dead = Lease(store, "r", "dead", beat_s=8.0)
    with dead, Lease(store, "r", "alive", beat_s=0.2, patience_s=1.0) as alive:
        assert not alive.was_own
        wait_for(lambda: dead.is_lost)
        assert not alive.is_lost


def test_a_killed_process_does_not_keep_its_own_spool_out(store):
    with Lease(store, "r", "here", **NEVER), Lease(store, "r", "here", patience_s=1e9) as own:
        assert own.was_own


def test_of_two_that_take_a_dead_one_at_a_time_one_gets_it(store):
    Lease(store, "r", "dead", **NEVER).__enter__()
    got: list[str] = []
    release = threading.Event()

    def take(spool: str) -> None:
        with Lease(store, "r", spool, beat_s=0.1, patience_s=4.0):
            got.append(spool)
            release.wait(60)

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(take, spool) for spool in ("a", "b")]
        wait_for(lambda: any(one.done() for one in both))
        release.set()
    assert len(got) == 1
    assert [type(one.exception()) for one in both if one.exception()] == [LeaseHeldError]


def test_a_store_that_is_gone_for_a_while_costs_no_lease(proxy):
    store = ObjectStore(s3.URL)
    with Lease(store, "r", "here", **QUICK) as lease:
        proxy.fault = "gone"
        wait_for(lambda: proxy.harmed.get("gone", 0) >= 4)
        proxy.fault = "none"
        before = store.read("locks/r.json")
        wait_for(lambda: store.read("locks/r.json") != before)
        assert not lease.is_lost
