"""Champions of a store: written by compare-and-swap, so that any machine may promote."""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

from rl_core.checkpoints.champion import champion_file, read_champion
from rl_core.config.operations import StorageConfig
from rl_core.evaluation.promotion import Promotion
from rl_core.storage.download import bring_files, download_run, listing_of, records
from rl_core.storage.lease import is_written_elsewhere
from rl_core.storage.object_store import Conflict, ObjectStore, StoreError, Version
from rl_core.storage.spool import Spool
from rl_core.system.atomic import write_bytes_atomically

_ROUNDS: Final = 10
"""Comparisons at most: each time another machine promotes first, one more is made."""
_PUBLISHED_S: Final = 600.0
"""Seconds that a promotion waits for its checkpoint to be in the store."""
_POLL_S: Final = 1.0
_logger = logging.getLogger(__name__)


def bring_champion(storage: StorageConfig, env: str, problems: str) -> Version | None:
    """Brings a champion by the digest of its test problems: record, checkpoint, evaluation rows.

    Returns the version of the record in the store; None if there is none, or no URL. StoreError if
    the store does not answer.
    """
    if storage.url is None:
        return None
    store = ObjectStore(storage.url)
    file = champion_file(storage.root, env, problems)
    stored = store.read(f"champions/{file.name}")
    if stored is None:
        return None
    content, version = stored
    if _content(file) != content:
        write_bytes_atomically(file, content)
    spool = Spool(storage.root, storage.url)
    champion = read_champion(file)
    if champion is None or champion.is_there(spool.root):
        return version
    run_id = champion.current.run_id
    rows = Path(champion.current.rows).name
    if is_written_elsewhere(store, run_id, spool.name()):  # else it was deleted here, and so there
        checkpoint = f"checkpoints/{Path(champion.current.checkpoint).name}/"
        download_run(
            store,
            spool,
            run_id,
            lambda p: records(p) or p.startswith(checkpoint),
            listing_of(store, run_id),
        )
        bring_files(store, spool.root, "evaluations", lambda name: name == rows)
    return version


def promote_published(
    storage: StorageConfig,
    env: str,
    problems: str,
    judge: Callable[[], Promotion],
    needed: tuple[str, ...],
) -> Promotion:
    """Returns the promotion of `judge` once the store has it; without a URL at once.

    `judge` compares with the champion in the spool, and writes the new one there. If another
    machine promotes meanwhile, it is called again, with that champion. `needed` are files, relative
    to `storage.root`, that must be in the store first. On a StoreError the old champion stays.
    """
    if storage.url is None:
        return judge()
    store = ObjectStore(storage.url)
    file = champion_file(storage.root, env, problems)
    for _ in range(_ROUNDS):
        version = bring_champion(storage, env, problems)
        before = _content(file)
        promotion = judge()
        after = _content(file)
        if after is None or after == before:
            return promotion
        restore = file.unlink if before is None else partial(write_bytes_atomically, file, before)
        with ExitStack() as unless_published:
            unless_published.callback(restore)
            for key in needed:
                _wait_for(store, key)
            if _publish(store, f"champions/{file.name}", after, version):
                unless_published.pop_all()
                return promotion
        _logger.info("another machine promoted meanwhile: comparing again")
    raise StoreError(f"{storage.url}: {_ROUNDS} times another machine promoted first: try again")


def _publish(store: ObjectStore, key: str, content: bytes, expected: Version | None) -> bool:
    try:
        store.put_if(key, content, expected)
    except Conflict:
        stored = store.read(key)
        return stored is not None and stored[0] == content  # done, and its reply was lost
    return True


def _wait_for(store: ObjectStore, key: str) -> None:
    """Waits until an object, which the mirror's thread publishes, is there."""
    deadline = time.monotonic() + _PUBLISHED_S
    while True:
        try:
            if key in store.list(f"{Path(key).parent}/"):
                return
            trouble = f"{store.url}: {key} is not there yet"
        except StoreError as error:
            trouble = str(error)
        if time.monotonic() > deadline:
            raise StoreError(trouble)
        time.sleep(_POLL_S)


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None
