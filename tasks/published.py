"""What a command needs of a store, and what it leaves there: nothing without `storage.url`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_folder
from rl_core.resources.token_budgets import BUDGETS_FILE
from rl_core.runs.run_folder import RunFolder
from rl_core.storage.download import (
    Wanted,
    all_but_checkpoints,
    bring_files,
    bring_folder,
    download_run,
    records,
)
from rl_core.storage.lease import is_written_elsewhere
from rl_core.storage.mirror import LAST_OF_DATA, LAST_OF_MODEL, mirrored
from rl_core.storage.object_store import Entry, ObjectStore
from rl_core.storage.spool import Spool
from tasks.base_model import home_made_folder

_RUNS: Final = "runs/"
_logger = logging.getLogger(__name__)


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


def bring_inputs(config: RunConfig, store: ObjectStore) -> list[str]:
    """Brings what settings need beside a run, and returns the folders that are published, too."""
    root = config.storage.root
    folders = {dataset_folder(config): LAST_OF_DATA}
    if config.model.path is None:
        folders[home_made_folder(config)] = LAST_OF_MODEL
    names = {str(folder.relative_to(root)): last for folder, last in folders.items()}
    for name, last in names.items():
        bring_folder(store, root, name, last)
    bring_files(store, root, "champions", lambda name: name.endswith(".json"))
    bring_files(store, root, "evaluations", lambda name: name.startswith("base-"))
    if not (root / BUDGETS_FILE).exists() and (found := store.read(BUDGETS_FILE)):
        root.mkdir(parents=True, exist_ok=True)
        (root / BUDGETS_FILE).write_bytes(found[0])
    return list(names)


def bring_runs(
    storage: StorageConfig,
    wanted: Wanted = all_but_checkpoints,
    *,
    chosen: Callable[[str], bool] = lambda run_id: True,
) -> None:
    """Brings what questions about runs are asked to, as far as it has changed.

    Args:
        storage: without a URL nothing is done.
        wanted: chooses among a run's paths.
        chosen: chooses among run ids.

    Raises:
        StoreError: the store does not answer.
    """
    if storage.url is None:
        return
    store, spool = ObjectStore(storage.url), Spool(storage.root, storage.url)
    runs: dict[str, dict[str, Entry]] = {}
    for key, entry in store.list(_RUNS).items():
        run_id, _, path = key.removeprefix(_RUNS).partition("/")
        runs.setdefault(run_id, {})[path] = entry
    for run_id, there in runs.items():
        if chosen(run_id) and is_written_elsewhere(store, run_id, spool.name()):
            with spool.publishing(run_id) as is_alone:
                if is_alone:
                    download_run(store, spool, run_id, wanted, there)


def bring_records(storage: StorageConfig) -> None:
    """Brings what tells the runs of a store apart; see `bring_runs`."""
    bring_runs(storage, records)


def bring_inputs_of_run(storage: StorageConfig, run: RunFolder) -> None:
    """Brings the data set and the home-made model that a run's record names."""
    if storage.url is None or not run.is_there():
        return
    store, record = ObjectStore(storage.url), run.read()
    for place, last in ((record.data, LAST_OF_DATA), (record.model, LAST_OF_MODEL)):
        if place is not None and Path(place).is_relative_to(storage.root):
            bring_folder(store, storage.root, str(Path(place).relative_to(storage.root)), last)
