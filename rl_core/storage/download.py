"""Download: brings down what the spool lacks of a run, or has older than the store.

Files and checkpoints come whole; a checkpoint without a manifest in the store does not count.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from rl_core.checkpoints.manifest import MANIFEST
from rl_core.checkpoints.store import move_pointers
from rl_core.storage.object_store import Conflict, Entry, ObjectStore
from rl_core.storage.spool import CHECKPOINTS, Agreement, Spool, Stat, checkpoint_of, files_of
from rl_core.system.atomic import new_file, new_folder, remove_folder

_PLACES: Final = ("data", "models", "runs")
"""Folders of `storage.root` that a run's record may name."""
_logger = logging.getLogger(__name__)
Wanted = Callable[[str], bool]


def everything(path: str) -> bool:
    """Chooses all of a run: a resume keeps, prunes and compares all checkpoints."""
    return True


def all_but_checkpoints(path: str) -> bool:
    """Chooses what `sql` and others read: record, settings, metrics, rollouts, answers."""
    return not path.startswith(CHECKPOINTS) and not path.startswith(("wandb/", "tensorboard/"))


def records(path: str) -> bool:
    """Chooses what distinguishes runs: their records and settings."""
    return path in ("run.json", "config.yaml")


def download_run(
    store: ObjectStore, spool: Spool, run_id: str, chosen: Wanted, there: Mapping[str, Entry]
) -> int:
    """Makes a run's folder in the spool what it is in the store, and returns how many files came.

    For a run that another spool wrote last. If this one has files of it that it never sent, its
    whole folder is moved to `superseded/`: nothing is lost, and nothing of it is mixed with what
    others did since. `there` has all objects of the run, by path relative to its folder. After a
    StoreError, what has come is whole.
    """
    folder = spool.root / "runs" / run_id
    known = spool.read(run_id)
    known.is_whole = False
    _set_unsent_aside(spool, run_id, folder, known)
    for path in [path for path in known.files if path not in there]:
        del known.files[path]
        (folder / path).unlink(missing_ok=True)
    spool.write(run_id, known)
    number = 0
    try:
        for name, files in _lacking(folder, known, chosen, there).items():
            is_file = name in there
            with suppress(FileNotFoundError, Conflict):  # deleted or replaced meanwhile
                with (new_file if is_file else new_folder)(folder / name) as temporary:
                    objects = {f"runs/{run_id}/{path}": entry for path, entry in files.items()}
                    _fetch(store, f"runs/{run_id}/{name}", objects, temporary)
                    if name == "run.json":
                        _name_local_places(temporary, spool.root)
                for path, entry in files.items():
                    status = (folder / path).stat()
                    known.files[path] = Stat(status.st_size, status.st_mtime_ns, entry.e_tag)
                number += len(files)
                if not is_file:
                    _logger.info("%s of run %s was brought from %s", name, run_id, store.url)
    finally:
        spool.write(run_id, known)
    if number:
        move_pointers(folder)
    for step in (folder / CHECKPOINTS).glob("step_*/"):
        if not (step / MANIFEST).exists():  # it was pruned elsewhere
            remove_folder(step)
    return number


def is_current(spool: Spool, run_id: str, chosen: Wanted, there: Mapping[str, Entry]) -> bool:
    """Returns whether the requested files of a run are here, as they are in the store."""
    folder = spool.root / "runs" / run_id
    known = spool.read(run_id)
    return known.files.keys() <= there.keys() and not _lacking(folder, known, chosen, there)


def listing_of(store: ObjectStore, run_id: str) -> dict[str, Entry]:
    """Returns what the store has of a run, by path relative to its folder."""
    prefix = f"runs/{run_id}/"
    return {key.removeprefix(prefix): entry for key, entry in store.list(prefix).items()}


def bring_folder(store: ObjectStore, root: Path, folder: str, last: str) -> None:
    """Brings a folder that is made once and whole with its file `last`, unless it is here."""
    final = root / folder
    if (final / last).exists():
        return
    there = store.list(f"{folder}/")
    if f"{folder}/{last}" in there:
        with new_folder(final) as temporary:
            _fetch(store, folder, there, temporary)
        _logger.info("%s was brought from %s", folder, store.url)


def bring_files(store: ObjectStore, root: Path, folder: str, chosen: Wanted) -> None:
    """Brings files of a folder that the spool lacks."""
    for key, entry in store.list(f"{folder}/").items():
        final = root / key
        if not final.exists() and chosen(final.name):
            with suppress(FileNotFoundError), new_file(final) as temporary:
                store.download(key, entry, temporary)


def _fetch(store: ObjectStore, above: str, objects: Mapping[str, Entry], target: Path) -> None:
    """Writes objects below `target` by what their keys have after `above`, or one to that file."""
    for key, entry in objects.items():
        file = target / key.removeprefix(above).lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        store.download(key, entry, file)


def _set_unsent_aside(spool: Spool, run_id: str, folder: Path, known: Agreement) -> None:
    unsent = [path for path, stat in files_of(folder).items() if known.files.get(path) != stat]
    if not unsent:
        return
    aside = spool.root / "superseded" / f"{run_id}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    aside.parent.mkdir(exist_ok=True)
    folder.rename(aside)
    known.files.clear()
    _logger.warning(
        "run %s continued elsewhere while this machine had not sent %s and %d files more: its own "
        "version is in %s",
        run_id,
        unsent[0],
        len(unsent) - 1,
        aside,
    )


def _lacking(
    folder: Path, known: Agreement, chosen: Wanted, there: Mapping[str, Entry]
) -> dict[str, dict[str, Entry]]:
    """Returns what to bring, by name: single files, and checkpoints with all their files."""
    wholes: dict[str, dict[str, Entry]] = {}
    lacking = set()
    for path, entry in there.items():
        name = checkpoint_of(path) if path.startswith(CHECKPOINTS) else path
        wholes.setdefault(name, {})[path] = entry
        agreed = known.files.get(path)
        is_here = agreed and agreed.e_tag == entry.e_tag and (folder / path).exists()
        if chosen(path) and not is_here:
            lacking.add(name)
    return {
        name: files
        for name, files in wholes.items()
        if name in lacking and (name in there or f"{name}/{MANIFEST}" in there)
    }


def _name_local_places(record: Path, root: Path) -> None:
    """Makes a record name data set and model in this spool, not in the one where it was written."""
    content = json.loads(record.read_text(encoding="utf-8"))
    for name in ("data", "model"):
        place = content.get(name)
        if not isinstance(place, str) or Path(place).exists():
            continue
        parts = Path(place).parts
        starts = [index for index, part in enumerate(parts) if part in _PLACES]
        if starts:
            content[name] = str(root.joinpath(*parts[starts[-1] :]))
    record.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
