"""What a command leaves in a store: nothing without `storage.url`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rl_core.config.run import RunConfig
from rl_core.storage.mirror import mirrored, shared_upload
from rl_core.storage.object_store import ObjectStore
from rl_core.storage.spool import Spool
from tasks.storage.bring import bring_inputs


@contextmanager
def published(config: RunConfig) -> Iterator[None]:
    """Has a run here, as the store knows it, and publishes it within the block.

    Data set, base model and champions come with it, where the store has them.

    Args:
        config: settings with a `run_id`; the run need not exist.

    Raises:
        ValueError: another machine is at work on the run.
        StoreError: the store does not answer.
    """
    assert config.run_id is not None, "choose_run has named it"

    def bring(store: ObjectStore, spool: Spool) -> Sequence[str]:
        return bring_inputs(config, store)

    with mirrored(config.storage, config.run_id, bring=bring):
        yield


@contextmanager
def inputs_published(config: RunConfig) -> Iterator[None]:
    """Has data set and base model here, where the store has them, and publishes them at the end.

    Raises:
        StoreError: the store does not answer.
    """
    if config.storage.url is None:
        yield
        return
    storage = config.storage
    store, spool = ObjectStore(config.storage.url), Spool(storage.root, config.storage.url)
    folders = bring_inputs(config, store)
    yield
    shared_upload(store, spool, folders).send(everything=True)
