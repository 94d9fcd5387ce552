"""A checkpoint's manifest: sizes and checksums of its files, to find damage before loading."""

import hashlib
import json
import os
import zlib
from collections.abc import Iterable
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path

from pydantic import BaseModel, Field, field_validator

from rl_core.system.atomic import write_text_atomically
from rl_core.system.model_folder import CHECKPOINT_MANIFEST, INDEX
from rl_core.system.plain_files import open_plain, read_json

MANIFEST = CHECKPOINT_MANIFEST
RESUME_FOLDER = "trainer/"
"""What an exact resume needs besides the model."""


class ManifestFile(BaseModel, frozen=True):
    """One file of a checkpoint, as it was written."""

    path: str
    """Relative to the checkpoint's folder, with forward slashes, and below it."""
    bytes: int
    crc32: str
    """Eight hexadecimal digits, against disk errors, not forgery: SHA-256 is eight times slower."""

    @field_validator("path")
    @classmethod
    def _is_below(cls, path: str) -> str:
        if not path or path.startswith("/") or ".." in path.split("/"):
            raise ValueError("it leads out of the checkpoint's folder")
        return path


class Manifest(BaseModel, frozen=True, allow_inf_nan=False):
    """The content of `checkpoint.json`."""

    step: int = Field(ge=0)
    accuracy: float | None
    """Held-out accuracy that chooses `best`; None if it was not measured."""
    score: float | None = None
    """Mean score of the same responses, which decides between equal accuracies (graded rewards)."""
    base_sha256: str | None = None
    """Of the frozen weights under the adapter; None if all weights were trained."""
    created_at: str
    total_bytes: int
    files: tuple[ManifestFile, ...]

    @property
    def weights(self) -> set[str]:
        """Names of the files with the whole model's weights; none if only the adapter is there."""
        names = (file.path for file in self.files if "/" not in file.path)
        return {name for name in names if name.endswith(".safetensors") or name == INDEX}


def write_manifest(
    folder: Path,
    step: int,
    accuracy: float | None,
    *,
    score: float | None = None,
    base_sha256: str | None = None,
) -> None:
    """Writes the manifest of all files that are in the folder."""
    files = tuple(_described(folder, path) for path in sorted(folder.rglob("*")) if path.is_file())
    manifest = Manifest(
        step=step,
        accuracy=accuracy,
        score=score,
        base_sha256=base_sha256,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        total_bytes=sum(file.bytes for file in files),
        files=files,
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=2) + "\n")


def add_to_manifest(folder: Path, names: Iterable[str]) -> None:
    """Replaces a sound checkpoint's manifest by one that describes these files, too."""
    manifest = Manifest.model_validate(read_json(folder / MANIFEST, below=folder))
    added = {name: _described(folder, folder / name) for name in sorted(names)}
    files = (*(file for file in manifest.files if file.path not in added), *added.values())
    total = sum(file.bytes for file in files)
    grown = manifest.model_copy(update={"files": files, "total_bytes": total})
    write_text_atomically(folder / MANIFEST, grown.model_dump_json(indent=2) + "\n")


def _described(folder: Path, path: Path) -> ManifestFile:
    name = path.relative_to(folder).as_posix()
    with path.open("rb") as content:
        return ManifestFile(path=name, bytes=path.stat().st_size, crc32=_crc32(content))


def read_manifest(checkpoint: Path) -> Manifest | str:
    """Returns the manifest if it can be read and every file has its size, else what is wrong."""
    try:
        manifest = Manifest.model_validate(read_json(checkpoint / MANIFEST, below=checkpoint))
    except FileNotFoundError as error:
        return f"{MANIFEST} cannot be read: {error.strerror}"
    except ValueError:
        return f"{MANIFEST} is not a manifest"
    for file in manifest.files:
        try:
            # It may be pruned at any moment.
            with open_plain(checkpoint / file.path, below=checkpoint) as content:
                size = os.fstat(content.fileno()).st_size
        except FileNotFoundError:
            return f"{file.path} is missing"
        except OSError as error:
            return f"{file.path} {error.strerror}"
        if size != file.bytes:
            return f"{file.path} has {size} bytes instead of {file.bytes}"
    return manifest


def find_damage(checkpoint: Path, *, from_disk: bool = False) -> str | None:
    """Returns what is wrong with a checkpoint's folder, or None if every byte is right.

    `from_disk` reads from the disk, not from the system's cache of what was written.
    """
    manifest = read_manifest(checkpoint)
    if isinstance(manifest, str):
        return manifest
    for file in manifest.files:
        try:
            with open_plain(checkpoint / file.path, below=checkpoint) as content:
                checksum = _crc32(content, from_disk=from_disk)
            if checksum != file.crc32:
                return f"{file.path} has other content than was saved"
        except OSError as error:  # a bad sector, or pruned at this moment
            return f"{file.path} cannot be read: {error.strerror}"
    return None


def model_digest(folder: Path) -> str:
    """Returns 16 hexadecimal digits that change if the folder holds another model.

    For a checkpoint, a digest of its files' checksums, without those for a resume; an adapter is
    the same model before and after it is merged. For another folder, of names, sizes and times of
    writing: hashing gigabytes would take longer.
    """
    manifest = read_manifest(folder)
    if isinstance(manifest, Manifest):
        facts: list[tuple[str, int, str | int]] = [
            (file.path, file.bytes, file.crc32)
            for file in manifest.files
            if not file.path.startswith(RESUME_FOLDER)
        ]
        if manifest.base_sha256 is not None:
            facts = [fact for fact in facts if fact[0] not in manifest.weights]
            facts.append(("base", 0, manifest.base_sha256))
    else:
        stats = {path.name: path.stat() for path in folder.iterdir() if path.is_file()}
        facts = [(name, one.st_size, one.st_mtime_ns) for name, one in stats.items()]
    return hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()[:16]


def _crc32(content: BufferedReader, *, from_disk: bool = False) -> str:
    checksum = 0
    if from_disk:
        os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    while part := content.read(2**20):
        checksum = zlib.crc32(part, checksum)
    return f"{checksum:08x}"
