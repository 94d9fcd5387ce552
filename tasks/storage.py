"""Brings what a command needs from the store at `storage.url`, if any; publishes its results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from rl_core.checkpoints.champion import all_champions
from rl_core.config.operations import StorageConfig
from rl_core.config.run import RunConfig
from rl_core.data.dataset import dataset_folder
from rl_core.runs.run_folder import RunFolder
from rl_core.storage import download
from rl_core.storage.champions import bring_champion
from rl_core.storage.lease import is_written_elsewhere
from rl_core.storage.mirror import LAST_OF_DATA, LAST_OF_MODEL, SharedUpload, mirrored
from rl_core.storage.object_store import Entry, ObjectStore
from rl_core.storage.spool import Spool
from tasks.base_model import made_folder
from tasks.queries.run_tables import find_runs


def bring_inputs(config: RunConfig, store: ObjectStore) -> list[str]:
    """Brings what the settings need besides a run; returns the folders that are also published."""
    root = config.storage.root
    folders = {LAST_OF_DATA: dataset_folder(config), LAST_OF_MODEL: made_folder(config)}
    names = {str(place.relative_to(root)): last for last, place in folders.items() if place}
    for name, last in names.items():
        download.bring_folder(store, root, name, last)
    download.bring_files(store, root, "champions", lambda name: name.endswith(".json"))
    download.bring_files(store, root, "evaluations", lambda name: name.startswith("base-"))
    return list(names)


def bring_runs(
    storage: StorageConfig,
    files: download.Wanted = download.all_but_checkpoints,
    *,
    chosen: Callable[[str], bool] = lambda run_id: True,
) -> None:
    """Brings the chosen `files` of the `chosen` runs, if there is a store and they have changed.

    StoreError if the store does not answer, as in all functions below.
    """
    if storage.url is None:
        return
    store = ObjectStore(storage.url)
    spool = Spool(storage.root, storage.url)
    runs: dict[str, dict[str, Entry]] = {}
    for key, entry in store.list("runs/").items():
        run_id, _, path = key.removeprefix("runs/").partition("/")
        runs.setdefault(run_id, {})[path] = entry
    for run_id, there in runs.items():
        if (
            chosen(run_id)
            and not download.is_current(spool, run_id, files, there)
            and is_written_elsewhere(store, run_id, spool.name())
        ):
            with spool.publishing(run_id) as is_alone:
                if is_alone:
                    download.download_run(store, spool, run_id, files, there)


def bring_records(storage: StorageConfig) -> None:
    """Brings the records of all runs; see `bring_runs`."""
    bring_runs(storage, download.records)


def bring_model(storage: StorageConfig, name: str, run_id: str | None) -> None:
    """Brings the run in `name` (by default `run_id`, else the latest run), or all champions."""
    if storage.url is None:
        return
    bring_records(storage)
    if name == "champion":
        store = ObjectStore(storage.url)
        download.bring_files(store, storage.root, "champions", lambda file: file[0] != ".")
        for champion in all_champions(storage.root):
            bring_champion(storage, champion.env, champion.problems)
            bring_inputs_of_run(storage, RunFolder.under(storage.root, champion.current.run_id))
        return
    named: str | None = name.partition("/")[0]
    if not (storage.root / "runs" / str(named)).is_dir():
        named = run_id or next((path.name for path in reversed(find_runs(storage.root))), None)
    bring_runs(storage, download.everything, chosen=lambda one: one == named)
    if named is not None:
        bring_inputs_of_run(storage, RunFolder.under(storage.root, named))


def bring_inputs_of_run(storage: StorageConfig, run: RunFolder) -> None:
    """Brings the data set and the home-made model that a run's record names."""
    if storage.url is None or not run.is_there():
        return
    store = ObjectStore(storage.url)
    record = run.read()
    for place, last in ((record.data, LAST_OF_DATA), (record.model, LAST_OF_MODEL)):
        if place is not None and Path(place).is_relative_to(storage.root):
            name = str(Path(place).relative_to(storage.root))
            download.bring_folder(store, storage.root, name, last)


@contextmanager
def published(config: RunConfig) -> Iterator[None]:
    """Brings a run and its inputs, as far as the store has them, and publishes the run.

    ValueError if another machine is at work on the run.
    """
    assert config.run_id is not None, "choose_run has named it"
    with mirrored(config.storage, config.run_id, bring=partial(bring_inputs, config)):
        yield


@contextmanager
def inputs_published(config: RunConfig) -> Iterator[None]:
    """Brings data set and base model, if the store has them, and publishes them at the end."""
    if config.storage.url is None:
        yield
        return
    store = ObjectStore(config.storage.url)
    folders = bring_inputs(config, store)
    yield
    SharedUpload(store, config.storage.root, folders).send()
