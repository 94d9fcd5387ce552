"""DOWNLOAD: what the spool lacks of a run, or has older than the store, is brought down, whole.

A checkpoint appears in the spool once all of it is there, as a save makes it appear; one that lies
in the store without its manifest is none.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from rl_core.checkpoints.manifest import MANIFEST
from rl_core.checkpoints.store import move_pointers
from rl_core.storage.object_store import Conflict, Entry, ObjectStore
from rl_core.storage.spool import Agreed, Agreement, Spool, files_of
from rl_core.storage.upload import CHECKPOINTS
from rl_core.system.atomic import (
    new_file,
    new_folder,
    remove_folder,
    write_text_atomically,
)

_PLACES: Final = ("data", "models", "runs")
"""Folders of `storage.root` that a run's record may name."""
_logger = logging.getLogger(__name__)
Wanted = Callable[[str], bool]


def everything(path: str) -> bool:
    """Wants all of a run: who goes on with it keeps, prunes and judges all checkpoints."""
    return True


def all_but_checkpoints(path: str) -> bool:
    """Wants what questions are asked about: record, settings, metrics, rollouts, answers."""
    return not path.startswith(CHECKPOINTS) and not path.startswith(("wandb/", "tensorboard/"))


def records(path: str) -> bool:
    """Wants what tells runs apart: their records and settings."""
    return path in ("run.json", "config.yaml")


def download_run(
    store: ObjectStore, spool: Spool, run_id: str, wanted: Wanted, there: Mapping[str, Entry]
) -> int:
    """Makes a run's folder in the spool what it is in the store, and returns how many files came.

    For a run that another spool wrote last. What this one has of it and never sent up is moved to
    `superseded/`: nothing is lost, and nothing of it is mixed with what others did since.

    Args:
        store: where the run is.
        spool: where it is to be.
        run_id: the run.
        wanted: chooses among its paths.
        there: all of its objects in the store, by path relative to the run's folder.

    Raises:
        StoreError: the store failed; what came by then is whole.
    """
    folder = spool.root / "runs" / run_id
    known = spool.read(run_id)
    known.is_whole = False
    _set_unsent_aside(spool, run_id, folder, known)
    for path in [path for path in known.files if path not in there]:
        del known.files[path]
        (folder / path).unlink(missing_ok=True)
    spool.write(run_id, known)
    whole = {path for path in there if path.startswith(CHECKPOINTS) and _has_manifest(path, there)}
    lacking = {
        path: entry
        for path, entry in there.items()
        if wanted(path)
        and (path in whole or not path.startswith(CHECKPOINTS))
        and not _is_here(folder, known, path, entry)
    }
    number = 0
    try:
        for step in dict.fromkeys(_checkpoint_of(path) for path in lacking if path in whole):
            files = {path: there[path] for path in whole if _checkpoint_of(path) == step}
            number += _bring_checkpoint(store, spool, run_id, step, files, known)
        for path in (path for path in lacking if path not in whole):
            number += _bring_file(store, spool, run_id, path, there[path], known)
    finally:
        spool.write(run_id, known)
    if number:
        move_pointers(folder)
    _drop_empty_checkpoints(folder)
    return number


def is_current(spool: Spool, run_id: str, wanted: Wanted, there: Mapping[str, Entry]) -> bool:
    """Says whether all that is wanted of a run is here as it is in the store."""
    folder, known = spool.root / "runs" / run_id, spool.read(run_id)
    return all(path in there for path in known.files) and all(
        _is_here(folder, known, path, entry) for path, entry in there.items() if wanted(path)
    )


def listing_of(store: ObjectStore, run_id: str) -> dict[str, Entry]:
    """Returns what the store has of a run, by path relative to its folder."""
    prefix = f"runs/{run_id}/"
    return {
        key.removeprefix(prefix): entry
        for key, entry in store.list(prefix).items()
        if key.startswith(prefix)
    }


def bring_folder(store: ObjectStore, root: Path, folder: str, last: str) -> None:
    """Brings a folder that is made once (a data set, a model), if it is there.

    Args:
        store: where it may be.
        root: the spool's; what is there already stays.
        folder: relative to it.
        last: its file that is sent last: without it the folder is not whole.
    """
    final = root / folder
    if (final / last).exists():
        return
    there = store.list(f"{folder}/")
    if f"{folder}/{last}" not in there:
        return
    with new_folder(final) as temporary:
        for key, entry in there.items():
            target = temporary / key.removeprefix(f"{folder}/")
            target.parent.mkdir(parents=True, exist_ok=True)
            store.download(key, entry, target)
    _logger.info("%s was brought from %s", folder, store.url)


def bring_files(store: ObjectStore, root: Path, folder: str, wanted: Wanted) -> None:
    """Brings files of a folder that the spool lacks."""
    for key, entry in store.list(f"{folder}/").items():
        final = root / key
        if not final.exists() and wanted(final.name):
            with suppress(FileNotFoundError), new_file(final) as temporary:
                store.download(key, entry, temporary)


def _set_unsent_aside(spool: Spool, run_id: str, folder: Path, known: Agreement) -> None:
    """Moves a run's folder away if it holds what was never sent up."""
    here = files_of(folder)
    unsent = [
        path
        for path, stat in here.items()
        if path not in known.files or known.files[path].stat != stat
    ]
    if not unsent:
        return
    aside = spool.root / "superseded" / f"{run_id}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    aside.parent.mkdir(exist_ok=True)
    folder.rename(aside)
    known.files.clear()
    _logger.warning(
        "run %s went on elsewhere while this machine had not sent %s and %d files more: its own "
        "version lies in %s",
        run_id,
        unsent[0],
        len(unsent) - 1,
        aside,
    )


def _is_here(folder: Path, known: Agreement, path: str, entry: Entry) -> bool:
    agreed = known.files.get(path)
    return agreed is not None and agreed.e_tag == entry.e_tag and (folder / path).exists()


def _bring_checkpoint(
    store: ObjectStore,
    spool: Spool,
    run_id: str,
    step: str,
    files: Mapping[str, Entry],
    known: Agreement,
) -> int:
    run_folder = spool.root / "runs" / run_id
    with suppress(FileNotFoundError, Conflict):  # pruned or replaced meanwhile
        with new_folder(run_folder / step) as temporary:
            for path, entry in files.items():
                target = temporary / path.removeprefix(f"{step}/")
                target.parent.mkdir(parents=True, exist_ok=True)
                store.download(f"runs/{run_id}/{path}", entry, target)
        for path, entry in files.items():
            _agree(known, run_folder, path, entry)
        _logger.info("%s of run %s was brought from %s", Path(step).name, run_id, store.url)
        return len(files)
    return 0


def _bring_file(
    store: ObjectStore, spool: Spool, run_id: str, path: str, entry: Entry, known: Agreement
) -> int:
    run_folder = spool.root / "runs" / run_id
    with suppress(FileNotFoundError, Conflict):  # deleted or replaced meanwhile
        with new_file(run_folder / path) as temporary:
            store.download(f"runs/{run_id}/{path}", entry, temporary)
        if path == "run.json":
            _name_local_places(run_folder / path, spool.root)
        _agree(known, run_folder, path, entry)
        return 1
    return 0


def _agree(known: Agreement, folder: Path, path: str, entry: Entry) -> None:
    stat = (folder / path).stat()
    known.files[path] = Agreed(size=stat.st_size, mtime_ns=stat.st_mtime_ns, e_tag=entry.e_tag)


def _name_local_places(record: Path, root: Path) -> None:
    """Has a record name data set and model of this spool, not of the one that it was written in."""
    content = json.loads(record.read_text(encoding="utf-8"))
    for name in ("data", "model"):
        place = content.get(name)
        if not isinstance(place, str) or Path(place).exists():
            continue
        parts = Path(place).parts
        starts = [index for index, part in enumerate(parts) if part in _PLACES]
        if starts:
            content[name] = str(root.joinpath(*parts[starts[-1] :]))
    write_text_atomically(record, json.dumps(content, indent=2) + "\n")


def _checkpoint_of(path: str) -> str:
    return "/".join(path.split("/")[:2])


def _has_manifest(path: str, there: Iterable[str]) -> bool:
    return f"{_checkpoint_of(path)}/{MANIFEST}" in there


def _drop_empty_checkpoints(folder: Path) -> None:
    """Removes the folders of checkpoints that were pruned elsewhere."""
    checkpoints = folder / CHECKPOINTS.rstrip("/")
    for step in checkpoints.iterdir() if checkpoints.is_dir() else ():
        is_one = step.name.startswith("step_") and step.is_dir()
        if is_one and not (step / MANIFEST).exists():
            remove_folder(step)
