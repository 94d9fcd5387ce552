"""Reads an env's rows from `env.source`, a local folder or the Hugging Face hub (stage 1).

Not what its rows mean (`envs`): only where the two splits come from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from rl_core.data.readers import file_digest, hub_files, read_records

SPLITS = ("train", "test")
HUB_CONFIG = "main"
_COLUMNS = ("question", "answer")


def find_source(source: str) -> dict[str, list[Path]]:
    """Returns the files of each split.

    Args:
        source: a folder that holds `train` and `test` as .jsonl or .parquet (or shards
            `train-*.parquet`), itself or in `main/`; else a data set of the hub, which is fetched
            unless it is in the local cache.

    Raises:
        ValueError: a split is missing, or the hub does not give the data set.
    """
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return _from_hub(source)
    found: dict[str, list[Path]] = {}
    for split in SPLITS:
        names = (f"{split}.jsonl", f"{split}.parquet", f"{split}-*.parquet")
        candidates = [
            sorted(place.glob(name)) for place in (folder, folder / HUB_CONFIG) for name in names
        ]
        files = next((files for files in candidates if files), None)
        if files is None:
            raise ValueError(
                f"env.source={source}: no {split}.jsonl or {split}.parquet in {folder}; give a "
                "folder with both splits"
            )
        found[split] = files
    return found


def read_rows(files: Iterable[Path]) -> list[tuple[str, str]]:
    """Returns the (question, answer) pairs of one split, in order.

    Raises:
        ValueError: a file cannot be read, or a row lacks one of the two.
    """
    rows: list[tuple[str, str]] = []
    for file in files:
        for number, record in read_records(file, _COLUMNS):
            question, answer = (record.get(name) for name in _COLUMNS)
            if not (isinstance(question, str) and isinstance(answer, str)):
                raise ValueError(f"{file}: row {number} lacks `question` or `answer` as text")
            rows.append((question, answer))
    return rows


def source_digest(files: Mapping[str, list[Path]]) -> str:
    """Returns a hash of the files' bytes, so that a changed copy is noticed."""
    digest = hashlib.sha256()
    for split in sorted(files):
        for file in files[split]:
            digest.update(split.encode() + bytes.fromhex(file_digest(file)))
    return digest.hexdigest()


def _from_hub(source: str) -> dict[str, list[Path]]:
    if source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise ValueError(f"env.source={source} is not a folder: check the path")
    places = (f"{HUB_CONFIG}/",)  # it has another config, whose rows are others
    return {split: hub_files(f"env.source={source}", source, split, places) for split in SPLITS}
