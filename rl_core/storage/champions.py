"""CHAMPIONS of a store: written by compare-and-swap, whatever machine promotes."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rl_core.checkpoints.champion import PromotedContender, champion_file, read_champion
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
    """Brings the champion of a set of problems: its record, checkpoint and evaluation rows.

    `problems` is the digest of the test problems. Returns the version of the record in the store;
    None if there is none, or no URL.

    Raises:
        StoreError: the store does not answer.
    """
    if storage.url is None:
        return None
    store, file = ObjectStore(storage.url), champion_file(storage.root, env, problems)
    found = store.read(_key(storage, file))
    if found is None:
        return None
    content, version = found
    if not file.exists() or file.read_bytes() != content:
        write_bytes_atomically(file, content)
    champion = read_champion(file)
    if champion is not None and not champion.is_there(storage.root):
        _bring_contender(store, Spool(storage.root, storage.url), champion.current)
    return version


def promote_published(
    storage: StorageConfig,
    env: str,
    problems: str,
    judge: Callable[[], Promotion],
    needed: tuple[str, ...],
) -> Promotion:
    """Returns the promotion of `judge` once the store has it; without a URL at once.

    If another machine promotes meanwhile, `judge` is called again, with that champion.

    Args:
        storage: where champions are.
        env: name of the problem family.
        problems: digest of the test problems.
        judge: compares with the champion in the spool, and writes the new one there.
        needed: files, relative to `storage.root`, that must be in the store first.

    Raises:
        StoreError: the store does not answer; the spool's champion is the one of before.
    """
    if storage.url is None:
        return judge()
    store, file = ObjectStore(storage.url), champion_file(storage.root, env, problems)
    for _ in range(_ROUNDS):
        version = bring_champion(storage, env, problems)
        before = _content(file)
        promotion = judge()
        after = _content(file)
        if after is None or after == before:
            return promotion
        is_published = False
        try:
            for key in needed:
                _wait_for(store, key)
            is_published = _publish(store, _key(storage, file), after, version)
        finally:
            if not is_published:
                _restore(file, before)
        if is_published:
            return promotion
        _logger.info("another machine promoted meanwhile: comparing again")
    raise StoreError(f"{storage.url}: others promote all the while")


def _publish(store: ObjectStore, key: str, content: bytes, expected: Version | None) -> bool:
    """Writes a champion's record, and says whether no other machine came first."""
    try:
        store.put_if(key, content, expected)
    except Conflict:
        found = store.read(key)
        return found is not None and found[0] == content  # done, and its reply was lost
    return True


def _bring_contender(store: ObjectStore, spool: Spool, champion: PromotedContender) -> None:
    if not is_written_elsewhere(store, champion.run_id, spool.name()):
        return  # what is gone from here is gone from there

    def wanted(path: str) -> bool:
        own = f"checkpoints/{Path(champion.checkpoint).name}/"
        return records(path) or path.startswith(own)

    download_run(store, spool, champion.run_id, wanted, listing_of(store, champion.run_id))
    rows = Path(champion.rows).name
    bring_files(store, spool.root, "evaluations", lambda name: name == rows)


def _wait_for(store: ObjectStore, key: str) -> None:
    """Waits until an object is there: the mirror's thread publishes it."""
    deadline = time.monotonic() + _PUBLISHED_S
    while True:
        trouble = f"{store.url}: {key} is not there yet"
        try:
            if key in store.list(f"{Path(key).parent}/"):
                return
        except StoreError as error:
            trouble = str(error)
        if time.monotonic() > deadline:
            raise StoreError(trouble)
        time.sleep(_POLL_S)


def _key(storage: StorageConfig, file: Path) -> str:
    return file.relative_to(storage.root).as_posix()


def _content(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def _restore(file: Path, content: bytes | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
    else:
        write_bytes_atomically(file, content)
